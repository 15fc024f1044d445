package rdsd

import (
	"errors"
	"syscall"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/shm"
)

func closing(errno syscall.Errno, text string) *rdsdv1.Closing {
	c := &rdsdv1.Closing{}
	c.SetErrno(int32(errno))
	c.SetMessage(text)
	return c
}

func say(c *shm.Conn, m *rdsdv1.ServerMessage, fds ...int) error {
	out, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return c.WriteMessage(out, fds...)
}

func sayClosing(c *shm.Conn, cl *rdsdv1.Closing) {
	m := &rdsdv1.ServerMessage{}
	m.SetClosing(cl)
	_ = say(c, m)
}

// hearMapped waits for the news that the client has mapped its region.
func hearMapped(c *shm.Conn) error {
	in, _, err := c.ReadMessage()
	m := &rdsdv1.ClientMessage{}
	if err == nil {
		err = proto.Unmarshal(in, m)
	}
	if err == nil && !m.HasMapped() {
		err = errors.New("the answer to a region is not RingMapped")
	}
	return err
}

// dropLocked lets go of the region, which nobody serves.
func (s *ringSock) dropLocked() {
	s.region.Close()
	s.region.Disown()
	s.theirs.Close()
}
