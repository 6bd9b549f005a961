// Takes the place of runc's file of the build without seccomp, which refuses every container that has a profile.
// libseccomp is a C library that not every machine has, and pods ask for the runtime's default profile: here they run
// without a filter.

package seccomp

import (
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Enabled tells that no filter is ever installed.
const Enabled = false

// InitSeccomp installs no filter and returns no descriptor of one.
func InitSeccomp(*configs.Seccomp) (int, error) {
	return -1, nil
}

// FlagSupported accepts every flag, since no filter uses it.
func FlagSupported(specs.LinuxSeccompFlag) error {
	return nil
}

// Version is that of no library.
func Version() (uint, uint, uint) {
	return 0, 0, 0
}
