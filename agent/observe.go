package agent

import (
	"errors"
	"slices"
	"time"
)

// observe learns from the outcome of a poll made with the identity in use. It
// returns true when it changed something, so that the next pass is worth making
// at once.
func (k *keeper) observe(err error) bool {
	v := k.inUse.Load()
	if v == nil {
		return false
	}
	switch judge(err) {
	case fine:
		if err == nil || errors.Is(err, errEarly) {
			k.confirmed(v)
		}
		return false
	case dead:
		k.bar(v, err)
		return true
	case unknown:
		// An open connection is older than what the server accepts by now: the
		// next request is to begin with a handshake.
		if err := k.use(v); err != nil {
			k.log.Warn("connection is not made anew", "err", err.Error())
		}
		return false
	case superseded:
		return k.superseded(v, err)
	case locked:
		k.lockedOut(err)
		return true
	case removed:
		k.wipe()
		return true
	case refused:
	}
	return false
}

// bar takes a dead version out of use, and with it those of the same issuer.
func (k *keeper) bar(v *version, err error) {
	for _, o := range k.versions {
		if o == v || o.facts.Issuer == v.facts.Issuer {
			k.barred[o.facts.Serial] = err.Error()
		}
	}
	k.cause = clip(err.Error())
}

// superseded tries another stored version: a crash may have left the newest one
// unknown here or there. Where there is none, only waiting is left.
func (k *keeper) superseded(v *version, err error) bool {
	k.barred[v.facts.Serial] = err.Error()
	// A request that arrived twice was answered twice, and one without an answer
	// may have been granted: either replaces what was not used yet.
	unanswered, _ := k.keys.unanswered(v)
	unanswered = unanswered && v.number > k.mem.Proven
	k.again = k.again || unanswered
	if next := k.another(); next != nil && k.take(next) == nil {
		return true
	}
	if unanswered {
		k.cause = clip(err.Error())
		return true
	}
	k.barred = map[string]string{}
	wait := k.late.next()
	k.silence(wait)
	k.note(err, wait)
	k.log.Error("identity is superseded: another one of this node is in use, perhaps by a copy of its disk",
		"serial", v.facts.Serial, "retry_in", wait.String(), "next", k.reissue())
	return true
}

// lockedOut backs off for long: nothing but an operator helps, and asking more
// often only fills logs.
func (k *keeper) lockedOut(err error) time.Duration {
	wait := k.locks.next()
	k.silence(wait)
	k.note(err, wait)
	k.log.Error("node is locked: its identity was seen twice, or an operator locked it",
		"retry_in", wait.String(), "next", "make sure that no copy of this node runs, then "+k.reissue())
	return wait
}

func (k *keeper) reissue() string {
	return "gpuaas node reissue-enrollment " + k.conf.NodeID + ", and run its command here"
}

// silence asks nothing for a while, heartbeats included.
func (k *keeper) silence(wait time.Duration) {
	now := k.clock.local()
	k.quiet.set(now, wait)
	k.hold.set(now, wait)
	k.hush.Store(now.Add(wait).UnixNano())
}

// silent reports whether heartbeats are to wait.
func (k *keeper) silent(now time.Time) bool {
	left := time.Unix(0, k.hush.Load()).Sub(now)
	return left > 0 && left <= k.timing.lockedMax
}

// confirmed notes that the server accepted the identity in use: it is promoted,
// and its recovery token is the live one.
func (k *keeper) confirmed(v *version) {
	for _, b := range []*backoff{&k.soon, &k.late, &k.locks} {
		b.reset()
	}
	k.again = false
	clear(k.barred)
	told := k.clock.latest()
	if k.envDone == v.facts.Serial {
		if told.Sub(k.mem.ServerTime) > time.Hour {
			k.remember()
		}
		return
	}
	k.envDone, k.mem.Proven = v.facts.Serial, max(k.mem.Proven, v.number)
	if err := k.keys.settle(v); err != nil {
		k.log.Warn("staged key left behind", "err", err.Error())
	}
	k.note(nil, 0)
	k.install(v)
	k.publish(v)
	k.remember()
}

// publish puts the recovery token into the env file in the place of a token
// that is no longer of use (S-ENR-10). Where the file cannot be written the
// token is in the state folder only.
func (k *keeper) publish(v *version) {
	token := v.meta.RecoveryToken
	if token == "" || k.conf.EnvFile == "" {
		return
	}
	mayGo := func(old string) bool { return k.known(old) }
	done, err := replaceEnvToken(k.state.disk, k.conf.EnvFile, token, mayGo)
	switch {
	case err != nil:
		k.log.Warn("env file keeps its old token, the recovery token is in the state folder only",
			"env_file", k.conf.EnvFile, "err", err.Error())
	case done:
		k.mem.Seen = tokenDigest(token)
	}
}

// known reports whether a token is one that this node has spent or holds.
func (k *keeper) known(token string) bool {
	d := tokenDigest(token)
	return slices.Contains(k.mem.Spent, d) || slices.ContainsFunc(k.versions, func(v *version) bool {
		return v.meta.RecoveryToken == token || slices.Contains(v.meta.Spent, d)
	})
}

// unspent reports whether the configuration holds a token that may still open an
// enrolment.
func (k *keeper) unspent() bool {
	t := string(k.conf.EnrollmentToken)
	return t != "" && !k.known(t)
}

// operatorToken reports whether an operator put a new token into the
// configuration: it takes precedence over the present identity.
func (k *keeper) operatorToken() bool {
	return k.unspent() && k.mem.Seen != tokenDigest(string(k.conf.EnrollmentToken))
}

// remember stores the memory; it can be found out again, so a failure is only
// said.
func (k *keeper) remember() {
	k.mem.ServerTime = k.clock.latest()
	if err := k.state.writeJSON(k.state.file(memoryFile), k.mem); err != nil {
		k.log.Warn("identity memory not stored", "err", err.Error())
	}
}

// install copies the version to the configured paths, where people look.
func (k *keeper) install(v *version) {
	if v.number == 0 {
		return
	}
	if err := k.store.install(v); err != nil {
		k.log.Warn("certificate and key are not copied to their paths, the stored identity is used all the same",
			"cert_path", k.conf.CertPath, "err", err.Error())
		return
	}
	if !k.mem.Installed {
		k.mem.Installed = true
		k.remember()
	}
}

// wipe forgets everything that identifies the node. It may be called again: a
// crash in the middle is gone on from at the next start.
func (k *keeper) wipe() Outcome {
	out := Outcome{Action: ActWipe, Removed: true}
	if k.gone {
		return out
	}
	token := string(k.conf.EnrollmentToken)
	if path := k.state.file(removedFile); !k.state.gone(*k.conf) {
		r := removal{NodeID: k.conf.NodeID, At: k.clock.now().UTC(), Token: tokenDigest(token)}
		out.Err = k.state.writeJSON(path, r)
	}
	out.Err = errors.Join(out.Err, k.keys.wipe(), k.store.wipe(), k.state.disk.system().Wipe(k.state.file(memoryFile)))
	if k.conf.EnvFile != "" {
		_, err := replaceEnvToken(k.state.disk, k.conf.EnvFile, "", func(old string) bool { return old == token || k.known(old) })
		out.Err = errors.Join(out.Err, err)
	}
	k.gone = true
	k.inUse.Store(nil)
	if out.Err != nil {
		k.log.Error("node removed, but not all of its keys and tokens could be wiped", "err", out.Err.Error())
		return out
	}
	k.log.Warn("node removed: its keys, certificates and tokens are wiped")
	return out
}
