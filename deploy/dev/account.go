package dev

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is another user of this machine to run a program as; nil is this
// process's own.
type account struct {
	name string
	uid  uint32
	gid  uint32
}

// unprivileged answers the user that Postgres, which refuses root, runs as:
// this process's own where that is not root.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, fault("run it as an ordinary user", "Postgres refuses to run as root, and there is neither a user postgres nor nobody")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: []uint32{a.gid}}
}

// own gives a path to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// reaches reports whether the account may pass every folder above path, as far
// as they exist.
func (a *account) reaches(path string) bool {
	if a == nil {
		return true
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && !a.passes(info) {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

func (a *account) passes(dir os.FileInfo) bool {
	bit := os.FileMode(0o001)
	if st, ok := dir.Sys().(*syscall.Stat_t); ok {
		switch {
		case st.Uid == a.uid:
			bit = 0o100
		case st.Gid == a.gid:
			bit = 0o010
		}
	}
	return dir.Mode().Perm()&bit != 0
}

// String implements fmt.Stringer.
func (a *account) String() string {
	if a == nil {
		return "this user"
	}
	return fmt.Sprintf("user %s", a.name)
}
