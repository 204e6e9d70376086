package faults_test

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
)

// faultyWire is a network with one listener: real sockets without ports.
type faultyWire struct {
	mu   sync.Mutex
	to   *listener
	down bool
}

// Dial connects to the current listener, or fails.
func (w *faultyWire) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	w.mu.Lock()
	to := w.to
	if w.down {
		to = nil
	}
	w.mu.Unlock()
	if to == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	near, far, err := pair()
	if err != nil {
		return nil, err
	}
	select {
	case to.conns <- far:
		return near, nil
	case <-to.done:
		err = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		err = ctx.Err()
	}
	near.Close()
	far.Close()
	return nil, err
}

// listen replaces the listener.
func (w *faultyWire) listen() *listener {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = &listener{conns: make(chan net.Conn), done: make(chan struct{})}
	return w.to
}

func (w *faultyWire) cut(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
}

// listener accepts what Dial connects.
type listener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: serverName, Net: "unix"} }

// pair returns the two ends of a connected socket.
func pair() (near, far net.Conn, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if near, err = fromFD(fds[0]); err != nil {
		syscall.Close(fds[1])
		return nil, nil, err
	}
	if far, err = fromFD(fds[1]); err != nil {
		near.Close()
		return nil, nil, err
	}
	return near, far, nil
}

func fromFD(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "pair")
	defer f.Close()
	return net.FileConn(f)
}
