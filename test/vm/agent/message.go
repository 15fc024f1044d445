package agent

// request is what the host says: to start a command, or to kill one that it has started.
type request struct {
	ID   int      `json:"id"`
	Argv []string `json:"argv,omitempty"`
	Env  []string `json:"env,omitempty"` // beside the agent's own; a later NAME=value wins
	Kill bool     `json:"kill,omitempty"`
}

// reply is what the guest says. ID 0 is the agent's own first word: it is ready, or Err says
// why it is not. Of a command there come any number of replies with Out and at the end one
// with Done.
type reply struct {
	ID   int    `json:"id"`
	Out  []byte `json:"out,omitempty"` // of its standard output and error, in order
	Done bool   `json:"done,omitempty"`
	Code int    `json:"code,omitempty"` // exit status; −1 when a signal ended it
	Err  string `json:"err,omitempty"`  // why there is no exit status
}
