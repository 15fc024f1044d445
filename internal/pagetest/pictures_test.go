package pagetest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

const (
	images = "../../docs/images"
	look   = "../../docs/quick-look.md"
	// largest is what a picture may have.
	largest = 64 << 10
)

// checkPictures compares what is to be read on the pictures that were taken now with what
// is to be read on those of the documents. Pixels differ with the fonts of a machine.
func checkPictures(t *testing.T, taken string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(taken, "*.webp"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d pictures were taken, %v", len(files), err)
	}
	text := filepath.Join(taken, "pictures.txt")
	if *update {
		for _, f := range append(files, text) {
			b, err := os.ReadFile(f)
			if err == nil {
				err = os.WriteFile(filepath.Join(images, filepath.Base(f)), b, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := os.ReadFile(text)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(images, "pictures.txt"))
	if err != nil || string(got) != string(want) {
		t.Errorf("the page says something else than on the pictures of docs/quick-look.md (%v); look at out/page/quick-look, then go test ./internal/pagetest -update", err)
	}
}

// TestPicturesOfDocs: each picture of the documents is there, shown and described, and
// small.
func TestPicturesOfDocs(t *testing.T) {
	page, err := os.ReadFile(look)
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(images, "*.*"))
	if err != nil || len(all) < 6 {
		t.Fatalf("%d files in %s, %v", len(all), images, err)
	}
	for _, f := range all {
		name := filepath.Base(f)
		if name == "pictures.txt" {
			continue
		}
		if !strings.Contains(string(page), "](images/"+name+")") {
			t.Errorf("docs/quick-look.md does not show %s", name)
		}
		if i, err := os.Stat(f); err != nil || i.Size() > largest || i.Size() < 4<<10 {
			t.Errorf("%s: %v bytes, %v", name, i.Size(), err)
		}
	}
	if n := strings.Count(string(readme), "](docs/images/"); n != 1 {
		t.Errorf("README.md has %d pictures", n)
	}
}

// TestPicturesTellNoLies: what the node of the pictures says is what the API can say.
func TestPicturesTellNoLies(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("node is not installed (make setup)")
	}
	out, err := exec.Command("node", "quicklook.mjs", "--data").Output()
	if err != nil {
		t.Fatal(err)
	}
	var said map[string]json.RawMessage
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatal(err)
	}
	for topic, m := range map[string]proto.Message{
		"status": &rdsdv1.Status{}, "peers": &rdsdv1.ListPeersResponse{}, "sockets": &rdsdv1.ListSocketsResponse{}, "counters": &rdsdv1.GetCountersResponse{},
		"congestion": &rdsdv1.ListCongestionResponse{}, "maps": &rdsdv1.ListCongestionMapsResponse{}, "history": &rdsdv1.CongestionHistory{},
		"volumes": &rdsdv1.VolumeListResponse{}, "paths": &rdsdv1.VolumeListPathsResponse{},
	} {
		if err := protojson.Unmarshal(said[topic], m); err != nil {
			t.Errorf("%s: %v", topic, err)
		}
		delete(said, topic)
	}
	for topic := range said {
		t.Errorf("%s is no topic", topic)
	}
}
