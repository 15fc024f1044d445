package rdsd_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		rdsdtest.Remove()
		os.Exit(code)
	}))
}
