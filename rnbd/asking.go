package rnbd

// Asking tells whether a message about the volume itself (to open or close it,
// or to ask what it is like) has no answer yet.
func (v *Volume) Asking() bool { return v.admin.busy }
