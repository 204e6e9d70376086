package e2e

import (
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// secretPause is how often the secret files are read, to include replaced secrets.
const secretPause = 200 * time.Millisecond

// window is the length of the prefix that the search looks up. Shorter secrets are not
// searched.
const window = 8

var tokenForm = regexp.MustCompile(regexp.QuoteMeta(trust.TokenPrefix) + `[0-9a-f-]{36}\.[A-Za-z0-9_-]+`)

// secrets collects all secrets that the stack, its agents and the tests had at any time.
// It is safe for concurrent use.
type secrets struct {
	mu    sync.Mutex
	known map[string]string // secret → description
}

func newSecrets() *secrets { return &secrets{known: map[string]string{}} }

func (s *secrets) add(what string, secret []byte) {
	if len(secret) < window {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[string(secret)] = what
}

// read collects every token and private key in a text, and their secret parts: the
// second half of a token, the number of a key.
func (s *secrets) read(text []byte) {
	text = bytes.ReplaceAll(text, []byte(`\n`), []byte("\n")) // a PEM in JSON
	for _, token := range tokenForm.FindAll(text, -1) {
		s.add("token", token)
		_, half, _ := bytes.Cut(token, []byte("."))
		s.add("token's secret", half)
	}
	for {
		at := bytes.Index(text, []byte("-----BEGIN "))
		if at < 0 {
			return
		}
		var block *pem.Block
		if block, text = pem.Decode(text[at:]); block == nil {
			return
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			s.privateKey(block)
		}
	}
}

func (s *secrets) privateKey(block *pem.Block) {
	s.add("private key", block.Bytes)
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		s.number(key)
	}
	if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		s.number(key)
	}
	for line := range strings.Lines(string(pem.EncodeToMemory(block))) {
		if !strings.HasPrefix(line, "-----") && len(line) > 48 { // shorter lines are not specific to one key
			s.add("line of a private key", []byte(strings.TrimSpace(line)))
		}
	}
}

func (s *secrets) number(key any) {
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		if raw, err := k.Bytes(); err == nil {
			s.add("private key's number", raw)
		}
	case ed25519.PrivateKey:
		s.add("private key's seed", k.Seed())
	}
}

// collect reads the current secrets in the stack's folder.
func (s *secrets) collect(dir string) {
	for _, place := range []string{"secrets", "agents", "hosts"} {
		// Files may disappear while they are read.
		_ = filepath.WalkDir(filepath.Join(dir, place), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil //nolint:nilerr // see above
			}
			if raw, err := os.ReadFile(path); err == nil {
				s.read(raw)
				if place == "secrets" {
					s.readSetting(filepath.Base(path), bytes.TrimSpace(raw))
				}
			}
			return nil
		})
	}
}

// readSetting collects a file that is or contains a secret.
func (s *secrets) readSetting(name string, raw []byte) {
	var keys map[string]string
	switch {
	case name == "database-url":
		if u, err := url.Parse(string(raw)); err == nil {
			password, _ := u.User.Password()
			s.add(name, []byte(password))
		}
	// JSON is skipped: a temporary bundle contains addresses.
	case name == "vault-keys.json" && json.Unmarshal(raw, &keys) == nil:
		for k, v := range keys {
			s.add(name+" "+k, []byte(v))
		}
	case strings.HasSuffix(name, "secret-id"), strings.HasSuffix(name, "token"), strings.Contains(name, "password"):
		s.add(name, raw)
	}
}

// watch collects secrets until the returned function is called.
func (s *secrets) watch(dir string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(secretPause)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				s.collect(dir)
			}
		}
	}()
	return func() { close(done); <-ended }
}

// all returns the collected secrets with their descriptions.
func (s *secrets) all() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.known)
}

// forms returns the encodings of a secret: plain, hex, URL-escaped, and base64 with both
// alphabets at each of three offsets.
func forms(secret []byte) map[string][]byte {
	lower := hex.EncodeToString(secret)
	out := map[string][]byte{
		"raw": secret, "hex": []byte(lower), "HEX": []byte(strings.ToUpper(lower)),
		"URL": []byte(url.QueryEscape(string(secret))),
	}
	for shift := range 3 {
		padded := append(make([]byte, shift), secret...)
		first, last := (shift*8+5)/6, len(padded)*8/6 // the part that is independent of adjacent bytes
		name := "base64+" + string(rune('0'+shift))
		out[name] = []byte(base64.RawStdEncoding.EncodeToString(padded)[first:last])
		out[name+" URL"] = []byte(base64.RawURLEncoding.EncodeToString(padded)[first:last])
	}
	return out
}

// needles finds many texts in one pass by their prefixes.
type needles map[uint64][]needle

type needle struct {
	text []byte
	what string
}

func needlesOf(known map[string]string) needles {
	n := needles{}
	for secret, what := range known {
		for form, text := range forms([]byte(secret)) {
			first := binary.BigEndian.Uint64(text)
			n[first] = append(n[first], needle{text, what + " (" + form + ")"})
		}
	}
	return n
}

// find returns the secrets in a text, including its gzip members.
func (n needles) find(text []byte) []string {
	hits := n.plain(text)
	magic := []byte{0x1f, 0x8b, 8}
	for at := bytes.Index(text, magic); at >= 0; {
		if r, err := gzip.NewReader(bytes.NewReader(text[at:])); err == nil {
			r.Multistream(false)
			inner, _ := io.ReadAll(io.LimitReader(r, 64<<20)) // a truncated member is searched as far as possible
			for _, hit := range n.plain(inner) {
				hits = append(hits, hit+" in gzip")
			}
		}
		next := bytes.Index(text[at+1:], magic)
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return hits
}

func (n needles) plain(text []byte) []string {
	var hits []string
	var last uint64
	for i, b := range text {
		last = last<<8 | uint64(b)
		if i < window-1 {
			continue
		}
		for _, needle := range n[last] {
			if bytes.HasPrefix(text[i-window+1:], needle.text) {
				hits = append(hits, needle.what)
			}
		}
	}
	return hits
}
