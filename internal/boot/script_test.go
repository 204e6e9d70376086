package boot_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/boot"
)

// nodeAPI is a node API that responds with the statuses in their order, and then with the script.
type nodeAPI struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int
	script   string
	bodies   []string
}

func newNodeAPI(t *testing.T, statuses ...int) *nodeAPI {
	t.Helper()
	a := &nodeAPI{statuses: statuses, script: "echo installed >\"${0%/*}/../installed\"\n"}
	a.Server = httptest.NewTLSServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *nodeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/internal/v1/bootstrap/script" || r.Header.Get("Content-Type") != "application/json" {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	a.bodies = append(a.bodies, string(body))
	status := http.StatusOK
	if len(a.statuses) > 0 {
		status, a.statuses = a.statuses[0], a.statuses[1:]
	}
	switch status {
	case 0:
		panic(http.ErrAbortHandler) // closes the connection
	case http.StatusFound:
		w.Header().Set("Location", "/elsewhere")
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, a.script)
}

// requests returns the bodies of the requests.
func (a *nodeAPI) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bodies
}

func (a *nodeAPI) ca() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw}))
}

// booted is what a machine did with its user data.
type booted struct {
	said               string
	code               int
	installed          bool
	pauses, arguments  []string
	leftovers          []string // in the folder for temporary files
	reference          string
	referenceInProcess bool
}

// run runs the user data as cloud-init does. Its curl and sleep record their arguments, and sleep
// takes no time. The script ends after a number of pauses.
func run(t *testing.T, url, ca string, pauses int) booted {
	t.Helper()
	curl, err := exec.LookPath("curl")
	require.NoError(t, err)
	shell := "sh"
	if _, err := exec.LookPath("dash"); err == nil {
		shell = "dash"
	}
	b, err := boot.Issuer{Tokens: &issued{}, NodeURL: url, CA: func(context.Context) (string, error) { return ca, nil }}.NewBoot(t.Context(), activities.Fence{NodeID: "n-1"})
	require.NoError(t, err)
	root := t.TempDir()
	bin, tmp, file := filepath.Join(root, "bin"), filepath.Join(root, "tmp"), filepath.Join(root, "user-data")
	for _, folder := range []string{bin, tmp} {
		require.NoError(t, os.Mkdir(folder, 0o700))
	}
	require.NoError(t, os.WriteFile(file, b.UserData, 0o700))
	note := "#!/bin/sh\necho \"${0##*/} $*\" >>\"" + root + "/arguments\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "curl"), []byte(note+"tr '\\0' ' ' </proc/$$/environ >>\""+root+"/environment\"\nexec "+curl+" \"$@\"\n"), 0o700))
	slept := note + "[ $(grep -c ^sleep \"" + root + "/arguments\") -le " + strconv.Itoa(pauses) + " ]\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "sleep"), []byte(slept), 0o700))
	cmd := exec.CommandContext(t.Context(), shell, file)
	cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "TMPDIR=" + tmp}
	out, err := cmd.CombinedOutput()
	if err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	r := booted{said: string(out), code: cmd.ProcessState.ExitCode(), reference: b.Reference}
	_, err = os.Stat(filepath.Join(tmp, "installed"))
	r.installed = err == nil
	calls, _ := os.ReadFile(filepath.Join(root, "arguments")) // none without a call
	seen, _ := os.ReadFile(filepath.Join(root, "environment"))
	r.referenceInProcess = strings.Contains(string(calls)+string(seen)+r.said, b.Reference)
	for line := range strings.Lines(string(calls)) {
		program, arguments, _ := strings.Cut(strings.TrimSpace(line), " ")
		if program == "sleep" {
			r.pauses = append(r.pauses, arguments)
		} else {
			r.arguments = append(r.arguments, arguments)
		}
	}
	left, err := filepath.Glob(filepath.Join(tmp, "tmp*"))
	require.NoError(t, err)
	r.leftovers = left
	return r
}

func TestUserData(t *testing.T) {
	t.Parallel()
	tenTimes := func(status, n int) (all []int) {
		for range n {
			all = append(all, status)
		}
		return all
	}
	for name, c := range map[string]struct {
		statuses  []int
		code      int
		requests  int
		installed bool
		says      string
	}{
		"at once":                         {nil, 0, 1, true, ""},
		"after two times unavailable":     {[]int{503, 503}, 0, 3, true, "no script from https://"},
		"after a lost response":           {[]int{0}, 0, 2, true, "(status 000)"},
		"after the limit of its address":  {[]int{429}, 0, 2, true, "(status 429)"},
		"once the package is configured":  {[]int{400, 404}, 0, 3, true, "(status 400)"},
		"not the text of an error":        {tenTimes(500, 90), 1, 90, false, "after 90 requests (status 500)"},
		"not the text of a redirect":      {[]int{302}, 0, 2, true, "(status 302)"},
		"not with an unknown reference":   {[]int{401}, 1, 1, false, "rejects the reference"},
		"not with a used reference":       {[]int{503, 409}, 1, 2, false, "rejects the reference"},
		"not with an expired reference":   {[]int{410}, 1, 1, false, "(status 410)"},
		"after a server that is starting": {[]int{502, 504, 503}, 0, 4, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newNodeAPI(t, c.statuses...)
			b := run(t, a.URL, a.ca(), 99)
			assert.Equal(t, c.code, b.code, b.said)
			assert.Equal(t, c.installed, b.installed, b.said)
			assert.Contains(t, b.said, c.says)
			assert.Len(t, a.requests(), c.requests)
			for _, body := range a.requests() {
				assert.JSONEq(t, `{"reference":"`+b.reference+`"}`, body)
			}
			assert.Len(t, b.pauses, c.requests-1)
			for _, pause := range b.pauses {
				assert.Equal(t, "10", pause)
			}
			assert.False(t, b.referenceInProcess, "no argument, environment or output contains the reference")
			assert.Empty(t, b.leftovers, "the script deletes its files")
		})
	}
}

// TestUserDataTrusts: the script sends nothing to a server that its CA does not verify, and not
// without TLS.
func TestUserDataTrusts(t *testing.T) {
	t.Parallel()
	plain := &nodeAPI{script: "exit 0"}
	plain.Server = httptest.NewServer(plain)
	t.Cleanup(plain.Close)
	a := newNodeAPI(t)
	for _, c := range []struct {
		server *nodeAPI
		ca     string
	}{{a, anotherCA(t)}, {a, "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"}, {plain, a.ca()}} {
		b := run(t, c.server.URL, c.ca, 1)
		assert.Equal(t, 1, b.code, b.said)
		assert.False(t, b.installed)
		assert.Empty(t, c.server.requests())
		assert.Len(t, b.arguments, 2)
		assert.False(t, b.referenceInProcess)
	}
}

// anotherCA returns a CA that did not issue the certificate of the server.
func anotherCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "another"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// TestUserDataEndsAsItsScript: cloud-init reports the failure of the script that installs.
func TestUserDataEndsAsItsScript(t *testing.T) {
	t.Parallel()
	a := newNodeAPI(t)
	a.script = "exit 7"
	b := run(t, a.URL, a.ca(), 0)
	assert.Equal(t, 7, b.code, b.said)
	assert.Empty(t, b.leftovers)
}

// TestUserDataQuotes: no value of the template ends its quotes.
func TestUserDataQuotes(t *testing.T) {
	t.Parallel()
	a := newNodeAPI(t)
	b := run(t, a.URL, "'; touch \"$TMPDIR/installed\"; '\n$(touch \"$TMPDIR/installed\")\nEND\n", 0)
	assert.Equal(t, 1, b.code, b.said)
	assert.False(t, b.installed)
}
