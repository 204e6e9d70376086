package identity

import (
	"log/slog"
	"sync/atomic"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
)

// nextTokenFile is a name in the state folder.
const nextTokenFile = "next-token.json"

// nextToken is the token of a task for the next identity. It is stored, because its claim voids
// the current identity: a process that starts after a crash must find it.
type nextToken struct {
	state disk.StateDir
	log   *slog.Logger
	// changed is set if the file has changed since it was read.
	changed atomic.Bool
	token   schema.Secret
}

type storedToken struct {
	TaskID string `json:"task_id"`
	Token  string `json:"token"`
	// Due is set once the server has the result of the task.
	Due bool `json:"due"`
}

// StoreToken stores the token that a task got for the next identity. It may be called from any
// goroutine.
func (n *nextToken) StoreToken(taskID string, token schema.Secret) error {
	return n.state.WriteJSON(n.state.File(nextTokenFile), storedToken{TaskID: taskID, Token: token.Reveal()})
}

// UseToken makes the manager enroll with the token of the task at its next pass. It may be
// called from any goroutine. If the file cannot be written, the token is not used, and the
// operation sends the task again.
func (n *nextToken) UseToken(taskID string) error {
	var s storedToken
	if ok, err := n.state.ReadJSON(n.state.File(nextTokenFile), &s); err != nil || !ok || s.TaskID != taskID || s.Due {
		return err
	}
	s.Due = true
	err := n.state.WriteJSON(n.state.File(nextTokenFile), s)
	n.changed.Store(err == nil)
	return err
}

// loadToken reads the token if the file may have changed, and reports whether it has one.
func (n *nextToken) loadToken() bool {
	if !n.changed.Swap(false) {
		return false
	}
	var s storedToken
	if ok, err := n.state.ReadJSON(n.state.File(nextTokenFile), &s); err != nil || !ok || !s.Due {
		return false
	}
	n.token = schema.NewSecret(s.Token)
	return true
}

// forgetToken forgets the token, which was used or is refused.
func (n *nextToken) forgetToken() {
	if err := n.dropToken(); err != nil {
		n.log.Warn("cannot remove the used token", "err", err.Error())
	}
}

func (n *nextToken) dropToken() error {
	n.token = schema.Secret{}
	return n.state.Wipe(n.state.File(nextTokenFile))
}
