package dev

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is a user of this machine to run a program as; nil is the current user.
type account struct {
	name string
	uid  uint32
	gid  uint32
}

// unprivileged returns the user to run Postgres as, which rejects root: the
// current user unless that is root.
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
	return nil, stackError("run this command as a regular user", "Postgres cannot run as root, and this machine has no user \"postgres\" or \"nobody\"")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: []uint32{a.gid}}
}

// chown makes the account the owner of a path.
func (a *account) chown(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// canReach reports whether the account may traverse every existing folder above
// path.
func (a *account) canReach(path string) bool {
	if a == nil {
		return true
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && !a.canTraverse(info) {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

func (a *account) canTraverse(dir os.FileInfo) bool {
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
		return "the current user"
	}
	return fmt.Sprintf("user %s", a.name)
}
