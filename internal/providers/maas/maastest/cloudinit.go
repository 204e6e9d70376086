package maastest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// scriptPath is the path of the node API from which user data downloads the bootstrap script.
const scriptPath = "/internal/v1/bootstrap/script"

// cloudInit runs the user data of a deployed system on this host, with the host's sh and curl. It
// does not run the bootstrap script that the user data downloads: the script would install the
// agent on this host. The image of the guest has the agent, and its first process does what
// remains of the script: it exchanges the reference and writes the agent's configuration. The
// document for it has the URL, the CA and the reference that the user data passed to curl.
//
// curl and sh in the script's PATH are stand-ins: curl stores its configuration and the CA
// before it runs the host's curl, and sh stores the script that it should run.
func cloudInit(ctx context.Context, userData []byte, output io.Writer) (*machine.BootDocument, error) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "cloud-init-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder for temporary files
	for name, text := range map[string]string{
		"user-data": string(userData),
		"bin/curl": `#!/bin/sh
cat >'` + dir + `/request'
last=
for word in "$@"; do
	[ "$last" != --cacert ] || cat "$word" >'` + dir + `/ca'
	last=$word
done
exec '` + curl + `' "$@" <'` + dir + `/request'
`,
		"bin/sh": "#!/bin/sh\ncat \"$1\" >'" + dir + "/script'\n",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil { //nolint:gosec // programs
			return nil, err
		}
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", filepath.Join(dir, "user-data"))
	cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "TMPDIR=" + dir}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = output, output, time.Second
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return readDocument(dir)
}

// readDocument returns what cloudInit stored. Its errors quote nothing of it.
func readDocument(dir string) (*machine.BootDocument, error) {
	var texts [3][]byte
	for i, name := range []string{"request", "ca", "script"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		texts[i] = text
	}
	settings, err := curlSettings(texts[0])
	if err != nil {
		return nil, err
	}
	base, ok := strings.CutSuffix(settings["url"], scriptPath)
	var body trust.BootstrapRequest
	if !ok || json.Unmarshal([]byte(settings["data"]), &body) != nil {
		return nil, errors.New("the request of the user data is not that of a bootstrap script")
	}
	if !bytes.HasPrefix(texts[2], []byte("#!/bin/sh\n")) || !bytes.Contains(texts[2], []byte(body.Reference)) {
		return nil, errors.New("the response to the user data is no bootstrap script with its reference")
	}
	return &machine.BootDocument{BaseURL: base, CABundlePEM: string(texts[1]), Reference: body.Reference}, nil
}

// curlSettings reads a configuration of curl: lines of the form name = "value".
func curlSettings(text []byte) (map[string]string, error) {
	settings := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, quoted, ok := strings.Cut(lines.Text(), " = ")
		value, err := strconv.Unquote(quoted)
		if !ok || err != nil {
			return nil, fmt.Errorf("line %d of curl's configuration is not a setting", len(settings)+1)
		}
		settings[name] = value
	}
	return settings, nil
}
