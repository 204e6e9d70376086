package compose

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// The part of the Compose specification that compose.yaml uses. Any other key is an error.
type (
	project struct {
		Name       string             `json:"name"`
		XGpuaas    any                `json:"x-gpuaas"`
		XEngines   any                `json:"x-engines"`
		XAPI       any                `json:"x-api"`
		XWorker    any                `json:"x-worker"`
		XAPIDepend any                `json:"x-api-depends"`
		XProbe     any                `json:"x-probe"`
		Services   map[string]service `json:"services"`
		Networks   map[string]struct {
			Internal bool `json:"internal"`
			IPAM     struct {
				Config []struct {
					Subnet string `json:"subnet"`
				} `json:"config"`
			} `json:"ipam"`
		} `json:"networks"`
		Volumes map[string]struct{} `json:"volumes"`
		Secrets map[string]struct {
			File string `json:"file"`
		} `json:"secrets"`
	}
	service struct {
		Image       string            `json:"image"`
		User        string            `json:"user"`
		Restart     string            `json:"restart"`
		ReadOnly    bool              `json:"read_only"`
		CapDrop     []string          `json:"cap_drop"`
		SecurityOpt []string          `json:"security_opt"`
		StopGrace   string            `json:"stop_grace_period"`
		Entrypoint  []string          `json:"entrypoint"`
		Command     []string          `json:"command"`
		Environment map[string]string `json:"environment"`
		Secrets     []string          `json:"secrets"`
		Volumes     []string          `json:"volumes"`
		Networks    []string          `json:"networks"`
		Ports       []string          `json:"ports"`
		DependsOn   map[string]struct {
			Condition string `json:"condition"`
		} `json:"depends_on"`
		Healthcheck struct {
			Test        []string `json:"test"`
			Interval    string   `json:"interval"`
			Timeout     string   `json:"timeout"`
			Retries     int      `json:"retries"`
			StartPeriod string   `json:"start_period"`
			Disable     bool     `json:"disable"`
		} `json:"healthcheck"`
	}
)

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(raw)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// load parses compose.yaml.
func load(t *testing.T) (p project) {
	t.Helper()
	require.NoError(t, yaml.UnmarshalStrict([]byte(read(t, "compose.yaml")), &p))
	require.NotEmpty(t, p.Services)
	return p
}

// once reports whether a service ends when its work is done.
func (p project) once(name string) bool {
	for _, s := range p.Services {
		if s.DependsOn[name].Condition == "service_completed_successfully" {
			return true
		}
	}
	return false
}

// TestServices: each image has a tag, each service restarts, and each that keeps running has a health
// check, on which other services may wait.
func TestServices(t *testing.T) {
	t.Parallel()
	p := load(t)
	image := regexp.MustCompile(`^\$\{[A-Z_]+_IMAGE:-[a-z/-]+:v?\d[\w.-]+\}$|^\$\{GPUAAS_REGISTRY:-gpuaas\}/(api|worker|cli):\$\{GPUAAS_VERSION:\?run setup\.sh\}$`)
	for name, s := range p.Services {
		assert.Regexp(t, image, s.Image, name)
		assert.NotContains(t, s.Image, "latest", name)
		if p.once(name) {
			assert.Equal(t, "on-failure", s.Restart, name)
			assert.True(t, s.Healthcheck.Disable, name)
		} else {
			assert.Equal(t, "unless-stopped", s.Restart, name)
			assert.False(t, s.Healthcheck.Disable, name)
			assert.NotEmpty(t, s.Healthcheck.Test, name)
			assert.NotEmpty(t, s.Healthcheck.Interval, name)
			assert.NotEmpty(t, s.Healthcheck.Timeout, name)
			assert.Positive(t, s.Healthcheck.Retries, name)
		}
		for other, d := range s.DependsOn {
			require.Contains(t, p.Services, other, name)
			want := []string{"service_healthy", "service_started"}
			if p.once(other) {
				want = []string{"service_completed_successfully"}
			}
			assert.Contains(t, want, d.Condition, "%s: %s", name, other)
		}
		for _, port := range s.Ports {
			loopback := strings.HasPrefix(port, "127.0.0.1:")
			assert.Equal(t, !strings.HasSuffix(port, ":8443"), loopback, "%s: only the node API is reachable from other hosts", name)
		}
	}
	for _, replica := range []string{"api-1", "api-2", "worker-1", "worker-2"} {
		s := p.Services[replica]
		assert.True(t, s.ReadOnly, replica)
		assert.Equal(t, []string{"ALL"}, s.CapDrop, replica)
		assert.Equal(t, "65532:65532", s.User, replica)
		assert.Equal(t, "30s", s.StopGrace, replica)
	}
	one, two := p.Services["api-1"], p.Services["api-2"]
	assert.NotEqual(t, one.Volumes, two.Volumes, "each replica has a state directory of its own")
	assert.True(t, p.Networks["engines"].Internal, "nothing there uses TLS")
	for _, name := range []string{"postgres", "temporal-schema", "vault", "vault-unseal", "setup", "logins"} {
		assert.Equal(t, []string{"engines"}, p.Services[name].Networks, name)
	}
	assert.Equal(t, p.Networks["edge"].IPAM.Config[0].Subnet, one.Environment["GPUAAS_NODE_PROXY_NETWORKS"])
}

// TestStartOrder: the page loads the images and writes the settings before it starts the project.
func TestStartOrder(t *testing.T) {
	t.Parallel()
	last := -1
	for _, command := range []string{"\nfor image in api worker cli; do docker load", "\nsh setup.sh ", "\ndocker compose up --detach\n"} {
		at := strings.Index(read(t, "README.md"), command)
		require.Greater(t, at, last, command)
		last = at
	}
}

// TestReferences: each mounted file, volume, secret and network exists, and each one is used.
func TestReferences(t *testing.T) {
	t.Parallel()
	p := load(t)
	volumes, secrets, networks := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for name, s := range p.Services {
		for _, v := range s.Volumes {
			source, rest, _ := strings.Cut(v, ":")
			if strings.HasPrefix(source, ".") {
				assert.True(t, exists(source), "%s mounts %s", name, source)
				assert.True(t, strings.HasSuffix(rest, ":ro"), "%s may write to %s", name, source)
				continue
			}
			volumes[source] = true
		}
		for _, secret := range s.Secrets {
			secrets[secret] = true
		}
		for _, n := range s.Networks {
			networks[n] = true
		}
		for variable, value := range s.Environment {
			if file, ok := strings.CutPrefix(value, "/run/secrets/"); ok {
				assert.Contains(t, s.Secrets, file, "%s: %s", name, variable)
			}
			assert.False(t, regexp.MustCompile(`(?i)(password|token|secret|key)$`).MatchString(variable), "%s: %s has a secret", name, variable)
		}
	}
	assert.Equal(t, slices.Sorted(maps.Keys(p.Volumes)), slices.Sorted(maps.Keys(volumes)))
	assert.Equal(t, slices.Sorted(maps.Keys(p.Secrets)), slices.Sorted(maps.Keys(secrets)))
	assert.Equal(t, slices.Sorted(maps.Keys(p.Networks)), slices.Sorted(maps.Keys(networks)))
	ignored := read(t, "../../.gitignore")
	assert.Contains(t, ignored, "\n/deploy/compose/secrets/\n")
	assert.Contains(t, ignored, "\n/deploy/compose/.env\n")
	info, err := os.Stat("postgres/roles.sh")
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&0o100, "the image would include a script that is not executable in its own")
}

// TestVariables: the programs have each variable, and the servers those of a list.
func TestVariables(t *testing.T) {
	t.Parallel()
	p := load(t)
	reference := func(page string) string { return read(t, "../../docs/reference/"+page) }
	worker := reference("gpuaas-worker.md")
	_, setup, found := strings.Cut(reference("gpuaas.md"), "\n## gpuaas admin setup\n")
	require.True(t, found)
	setup, _, _ = strings.Cut(setup, "\n## ")
	pages := map[string]string{"api": reference("gpuaas-api.md"), "worker": worker, "cli": setup}
	servers := map[string][]string{
		"postgres": {"POSTGRES_PASSWORD_FILE"}, "vault": {"VAULT_ADDR", "SKIP_SETCAP"}, "vault-unseal": {"VAULT_ADDR"},
		"grafana": {"GF_SECURITY_ADMIN_PASSWORD__FILE", "GF_ANALYTICS_REPORTING_ENABLED", "GF_ANALYTICS_CHECK_FOR_UPDATES"},
	}
	programs := 0
	for name, s := range p.Services {
		if m := regexp.MustCompile(`/(\w+):\$\{GPUAAS_VERSION`).FindStringSubmatch(s.Image); m != nil {
			programs++
			for variable := range s.Environment {
				if m[1] == "cli" && strings.HasPrefix(variable, "TEMPORAL_") {
					assert.Contains(t, worker, "`"+variable+"`", name)
					continue
				}
				assert.Regexp(t, `\b`+variable+`\b`, pages[m[1]], name)
			}
			continue
		}
		for variable := range s.Environment {
			assert.Contains(t, servers[name], variable, name)
		}
	}
	assert.Equal(t, 5, programs)
	for program, replica := range map[string]string{"gpuaas-api": "api-1", "gpuaas-worker": "worker-1"} {
		assert.Equal(t, []string{"CMD", "/usr/local/bin/" + program, "--ready"}, p.Services[replica].Healthcheck.Test)
		assert.Contains(t, reference(program+".md"), "`--ready`")
	}
	// Addresses that depend on the installation: without them, links and the console behind a proxy fail.
	for _, variable := range []string{"GPUAAS_CONSOLE_URL", "GPUAAS_WEB_UI_URL"} {
		for _, replica := range []string{"api-1", "api-2"} {
			assert.Contains(t, p.Services[replica].Environment[variable], "${"+variable+":-", replica)
		}
		assert.Contains(t, read(t, "README.md"), "`"+variable+"`")
	}
	// Compose replaces these; setup.sh writes those without a default.
	for _, m := range regexp.MustCompile(`\$\{(\w+)(:[-?])?`).FindAllStringSubmatch(read(t, "compose.yaml"), -1) {
		assert.NotEmpty(t, m[2], m[1])
		assert.Equal(t, m[2] == ":?", m[1] == "GPUAAS_VERSION" || m[1] == "NODE_API_NAME", m[1])
	}
}

// TestPrometheus: Prometheus scrapes each replica at the port of its metrics, and loads the mounted
// rules.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	var c struct {
		Global struct {
			Scrape   string `json:"scrape_interval"`
			Evaluate string `json:"evaluation_interval"`
		} `json:"global"`
		RuleFiles []string `json:"rule_files"`
		Scrape    []struct {
			Job    string `json:"job_name"`
			Static []struct {
				Targets []string `json:"targets"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(read(t, "prometheus/prometheus.yml")), &c))
	p := load(t)
	assert.Contains(t, p.Services["prometheus"].Volumes, "../observability/alerts.yaml:"+c.RuleFiles[0]+":ro")
	scraped := map[string]bool{}
	for _, job := range c.Scrape {
		for _, target := range job.Static[0].Targets {
			host, port, _ := strings.Cut(target, ":")
			scraped[host] = true
			require.Contains(t, p.Services, host)
			assert.Contains(t, p.Services[host].Networks, "monitoring", host)
			if host != "temporal" {
				assert.Equal(t, ":"+port, p.Services[host].Environment["GPUAAS_METRICS_ADDR"], host)
			}
		}
	}
	assert.Equal(t, []string{"api-1", "api-2", "temporal", "worker-1", "worker-2"}, slices.Sorted(maps.Keys(scraped)))
	assert.Contains(t, read(t, "temporal/temporal.yaml"), "listenAddress: 0.0.0.0:8000")
}

// TestGrafana: the provisioned folder is the mounted one, and the data source is Prometheus.
func TestGrafana(t *testing.T) {
	t.Parallel()
	var boards struct {
		Providers []struct {
			Options struct {
				Path string `json:"path"`
			} `json:"options"`
		} `json:"providers"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "grafana/dashboards/gpuaas.yaml")), &boards))
	assert.Contains(t, load(t).Services["grafana"].Volumes, "../observability/dashboards:"+boards.Providers[0].Options.Path+":ro")
	assert.Contains(t, read(t, "grafana/datasources/prometheus.yaml"), "url: http://prometheus:9090")
}

// TestTemporalAuthorization: Temporal authorizes as deploy/temporal says, with the keys and the audience
// of setup.sh, and its own workers use the service without authorization.
func TestTemporalAuthorization(t *testing.T) {
	t.Parallel()
	type settings struct {
		Global struct {
			Authorization map[string]any `json:"authorization"`
		} `json:"global"`
		Services map[string]any `json:"services"`
		Public   any            `json:"publicClient"`
	}
	var shipped, here settings
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "../temporal/authorization.yaml")), &shipped))
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "temporal/temporal.yaml")), &here))
	for _, s := range []settings{shipped, here} {
		s.Global.Authorization["jwtKeyProvider"].(map[string]any)["keySourceURIs"] = nil
	}
	assert.Equal(t, "gpuaas-compose", here.Global.Authorization["audience"])
	here.Global.Authorization["audience"] = shipped.Global.Authorization["audience"]
	assert.Equal(t, shipped.Global.Authorization, here.Global.Authorization)
	assert.Equal(t, shipped.Services["internal-frontend"], here.Services["internal-frontend"])
	assert.Nil(t, here.Public)
	assert.Contains(t, load(t).Services["temporal"].Command, "internal-frontend")
}
