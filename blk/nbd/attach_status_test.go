package nbd

import "testing"

// TestStatusWithoutDriver holds that where the kernel's driver cannot be asked there is an error, and not the
// answer that there are no devices.
func TestStatusWithoutDriver(t *testing.T) {
	if _, err := ask("status", genlStatus, 0, func(*message) {}); err == nil {
		t.Skip("elsewhere: the kernel has its NBD driver")
	}
	if l, err := Status(AnyDevice); err == nil {
		t.Errorf("the driver is not there, and has devices %v", l)
	}
}
