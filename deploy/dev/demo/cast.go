package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// recorder writes what it is given into an asciinema recording (version 2). castsvg renders it.
type recorder struct {
	mu      sync.Mutex
	file    *os.File
	started time.Time
}

// newRecorder creates the file.
func newRecorder(path string) (*recorder, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(file, `{"version": 2, "width": 120, "height": 30}`)
	return &recorder{file: file, started: time.Now()}, err
}

// Write implements io.Writer.
func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text, err := json.Marshal(string(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))))
	if err == nil {
		_, err = fmt.Fprintf(r.file, "[%.3f, \"o\", %s]\n", time.Since(r.started).Seconds(), text)
	}
	return len(p), err
}

// output is where the demo and its commands write: standard error, and the recording if there is one.
func (o options) output() (io.Writer, error) {
	if o.cast == "" {
		return os.Stderr, nil
	}
	r, err := newRecorder(o.cast)
	if err != nil {
		return nil, err
	}
	return io.MultiWriter(os.Stderr, r), nil
}
