package maas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/textproto"
)

// userData returns the document for cloud-init: data, or with SSH keys a MIME archive of data
// and a cloud-config that adds the keys of the spec to the default user. JSON is valid YAML.
func userData(data []byte, keys []string) ([]byte, error) {
	if len(keys) == 0 {
		return data, nil
	}
	config, err := json.Marshal(map[string]any{"ssh_authorized_keys": keys})
	if err != nil {
		return nil, err
	}
	var parts bytes.Buffer
	w := multipart.NewWriter(&parts)
	for _, part := range []struct {
		kind string
		text []byte
	}{{kind(data), data}, {"text/cloud-config", append([]byte("#cloud-config\n"), config...)}} {
		out, err := w.CreatePart(textproto.MIMEHeader{"Content-Type": {part.kind}, "MIME-Version": {"1.0"}})
		if err != nil {
			return nil, err
		}
		if _, err := out.Write(part.text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	head := fmt.Sprintf("Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", w.Boundary())
	return append([]byte(head), parts.Bytes()...), nil
}

// kind returns the type that cloud-init gives a document by its first line.
func kind(data []byte) string {
	switch {
	case bytes.HasPrefix(data, []byte("#!")):
		return "text/x-shellscript"
	case bytes.HasPrefix(data, []byte("#cloud-config")):
		return "text/cloud-config"
	default:
		return "text/plain"
	}
}
