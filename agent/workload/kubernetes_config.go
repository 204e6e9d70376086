package workload

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// maxKubeconfig bounds the bytes of a kubeconfig file and of the files that it names.
const maxKubeconfig = 1 << 20

// Kubeconfigs returns the files that the kubernetes driver looks for if no file is configured:
// those of a kubelet of k3s (agent or server), of RKE2, of other distributions, and of kubeadm.
func Kubeconfigs() []string {
	return []string{"/var/lib/rancher/k3s/agent/kubelet.kubeconfig", "/var/lib/rancher/rke2/agent/kubelet.kubeconfig", "/var/lib/kubelet/kubeconfig", "/etc/kubernetes/kubelet.conf"}
}

// kubeconfig is the part of a kubeconfig file that the driver reads or refuses.
type kubeconfig struct {
	CurrentContext string `json:"current-context"`
	Contexts       []struct {
		Name    string `json:"name"`
		Context struct {
			Cluster string `json:"cluster"`
			User    string `json:"user"`
		} `json:"context"`
	} `json:"contexts"`
	Clusters []struct {
		Name    string      `json:"name"`
		Cluster kubeCluster `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		Name string   `json:"name"`
		User kubeUser `json:"user"`
	} `json:"users"`
}

type kubeCluster struct {
	Server        string `json:"server"`
	CA            string `json:"certificate-authority"`
	CAData        string `json:"certificate-authority-data"`
	TLSServerName string `json:"tls-server-name"`
	Insecure      bool   `json:"insecure-skip-tls-verify"`
	ProxyURL      string `json:"proxy-url"`
}

type kubeUser struct {
	Cert         string `json:"client-certificate"`
	CertData     string `json:"client-certificate-data"`
	Key          string `json:"client-key"`
	KeyData      string `json:"client-key-data"`
	Token        string `json:"token"`
	TokenFile    string `json:"tokenFile"`
	Username     string `json:"username"`
	Password     string `json:"password"`
	Impersonate  string `json:"as"`
	AsUID        string `json:"as-uid"`
	AsGroups     any    `json:"as-groups"`
	AsExtra      any    `json:"as-user-extra"`
	Exec         any    `json:"exec"`
	AuthProvider any    `json:"auth-provider"`
}

// kubeAccess is how to reach an API server and what to present there.
type kubeAccess struct {
	server *url.URL
	ca     []byte
	cert   []byte
	key    []byte
	token  string
	// serverName verifies the server's certificate, "" for the host of server.
	serverName string
}

// loadKubeconfig reads a kubeconfig file, the default one if path is empty, and the files that
// it names. Errors contain no content of the files.
func loadKubeconfig(path string) (kubeAccess, error) {
	if path == "" {
		if path = firstFile(Kubeconfigs()); path == "" {
			return kubeAccess{}, fmt.Errorf("no kubeconfig: none of %s exists; set GPUAAS_KUBECONFIG", strings.Join(Kubeconfigs(), ", "))
		}
	}
	raw, err := readBounded(path)
	if err != nil {
		return kubeAccess{}, err
	}
	var c kubeconfig
	if err := yaml.Unmarshal(raw, &c); err != nil {
		return kubeAccess{}, fmt.Errorf("kubeconfig %s: not a valid kubeconfig", path) // the error may quote a secret
	}
	cluster, user, err := c.current()
	if err == nil {
		err = errors.Join(cluster.check(), user.check())
	}
	if err != nil {
		return kubeAccess{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return cluster.access(user, filepath.Dir(path))
}

// firstFile returns the first path that exists, "" if none does.
func firstFile(paths []string) string {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return ""
}

// current returns the cluster and the user of the current context.
func (c kubeconfig) current() (cluster kubeCluster, user kubeUser, err error) {
	for _, x := range c.Contexts {
		if x.Name != c.CurrentContext {
			continue
		}
		var hasCluster, hasUser bool
		for _, k := range c.Clusters {
			if k.Name == x.Context.Cluster {
				cluster, hasCluster = k.Cluster, true
			}
		}
		for _, u := range c.Users {
			if u.Name == x.Context.User {
				user, hasUser = u.User, true
			}
		}
		if !hasCluster || !hasUser {
			return cluster, user, errors.New("the current context names a cluster or a user that is not in the file")
		}
		return cluster, user, nil
	}
	return cluster, user, errors.New("the file has no current context")
}

// check refuses settings that weaken the connection.
func (c kubeCluster) check() error {
	u, err := url.Parse(c.Server)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "":
		return errors.New("server is not an https address")
	case c.Insecure:
		return errors.New("insecure-skip-tls-verify is not accepted: name the certificate authority")
	case c.ProxyURL != "":
		return errors.New("proxy-url is not accepted: the agent connects directly")
	case c.CA == "" && c.CAData == "":
		return errors.New("certificate-authority is missing")
	}
	return nil
}

// check refuses credentials that would run a program or act for another user.
func (u kubeUser) check() error {
	switch {
	case u.Exec != nil || u.AuthProvider != nil:
		return errors.New("exec and auth-provider are not accepted: the agent runs no credential program; use a client certificate or a token")
	case u.Username != "" || u.Password != "" || u.Impersonate != "" || u.AsUID != "" || u.AsGroups != nil || u.AsExtra != nil:
		return errors.New("username, password and as are not accepted: use a client certificate or a token")
	case u.Cert == "" && u.CertData == "" && u.Token == "" && u.TokenFile == "":
		return errors.New("the user has neither a client certificate nor a token")
	}
	return nil
}

// access reads what the cluster and the user refer to. Relative paths are below folder.
func (c kubeCluster) access(u kubeUser, folder string) (a kubeAccess, err error) {
	read := func(what, data, path string) (content []byte) {
		switch {
		case err != nil || data == "" && path == "":
		case data != "":
			if content, err = base64.StdEncoding.DecodeString(data); err != nil {
				err = fmt.Errorf("kubeconfig: %s-data is not base64", what)
			}
		case filepath.IsAbs(path):
			content, err = readBounded(path)
		default:
			content, err = readBounded(filepath.Join(folder, path))
		}
		return content
	}
	a.server, _ = url.Parse(c.Server) // check parsed it
	a.serverName = c.TLSServerName
	a.ca = read("certificate-authority", c.CAData, c.CA)
	a.cert = read("client-certificate", u.CertData, u.Cert)
	a.key = read("client-key", u.KeyData, u.Key)
	if a.token = u.Token; u.TokenFile != "" {
		a.token = strings.TrimSpace(string(read("token", "", u.TokenFile)))
	}
	if err == nil && u.TokenFile != "" && a.token == "" {
		err = errors.New("kubeconfig: the token file is empty")
	}
	if err == nil && strings.ContainsFunc(a.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		err = errors.New("kubeconfig: the token is not valid")
	}
	return a, err
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, maxKubeconfig+1))
	if err == nil && len(data) > maxKubeconfig {
		err = fmt.Errorf("%s has more than %d bytes", path, maxKubeconfig)
	}
	return data, err
}
