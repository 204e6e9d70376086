package secrets_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// registered is a secret without a recognizable form, registered with the scanner.
const registered = `correct-"horse"-battery-staple`

func scanner() *secrets.Scanner {
	return secrets.New(schema.NewSecret(registered), schema.NewSecret("short"))
}

// leaks are texts that contain a secret, by the kind that is found.
func leaks() map[string][]string {
	token, _, _ := trust.NewToken()
	api := trust.APITokenPrefix + rand.Text()
	b64url := base64.RawURLEncoding.EncodeToString
	jwt := b64url([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + b64url([]byte(`{"sub":"alice","exp":1}`)) + ".c2lnbmF0dXJl"
	return map[string][]string{
		"an enrollment token": {token, `{"token":"` + token + `"}`, "claim " + token + ": rejected"},
		"an API token":        {api, "Bearer " + api, "used " + api + " by mistake"},
		"a private key":       {"-----BEGIN EC PRIVATE KEY-----\nMHcC", `{"key":"-----BEGIN PRIVATE KEY-----\nMC4C"}`},
		"a JWT":               {jwt, "Authorization: Bearer " + jwt},
		"a Vault token": {"hvs.CAESIJ0aBcDeFgHiJkLmNoPqRsTuVw", `"hvb.AAAAAQKaBcDeFgHiJkLmNoPq"`, "s.9aBcDeFgHiJkLmNoPqRsTuVw", `"s.9aBcDeFgHiJkLmNoPqRsTuVw"`,
			"VAULT_TOKEN=hvr.CAESIJ0aBcDeFgHiJkLmNoPq", `{"text":"a\nhvs.CAESIJ0aBcDeFgHiJkLmNoPq"}`, `"\u003chvs.CAESIJ0aBcDeFgHiJkLmNoPq\u003e"`,
			`"token:\ts.9aBcDeFgHiJkLmNoPqRsTuVw\n"`},
		"a secret of this process": {registered, "password " + registered, `"` + strings.ReplaceAll(registered, `"`, `\"`) + `"`},
	}
}

// encoded are the forms in which data is found too.
func encoded(data string) map[string]string {
	var escaped strings.Builder
	for _, b := range []byte(data) {
		fmt.Fprintf(&escaped, "%%%02X", b)
	}
	b64 := base64.StdEncoding.EncodeToString
	return map[string]string{
		"base64": b64([]byte(data)), "base64 shifted by 1": b64([]byte("\n" + data)), "base64 shifted by 2": b64([]byte("\n\n" + data)),
		"base64url": base64.RawURLEncoding.EncodeToString([]byte(data)), "a path": "secret/data-1/" + b64([]byte(data)),
		"hex": hex.EncodeToString([]byte(data)), "upper-case hex": fmt.Sprintf("a%X", data),
		"percent": escaped.String(), "query": url.QueryEscape(data), "base64 in a query": url.QueryEscape(b64([]byte("?>~" + data))),
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	s := scanner()
	for want, texts := range leaks() {
		for _, text := range texts {
			require.Equal(t, want, s.Find([]byte(text)), text)
			require.NotContains(t, s.Withhold(text), text)
			// A Vault token of the old form has no mark that base64 and hex keep.
			old := strings.Contains(text, "s.9aBcDeFgHiJkLmNoPqRsTuVw")
			for form, text := range encoded(text) {
				if old && form != "percent" && form != "query" {
					continue
				}
				require.Equal(t, want, s.Find([]byte(text)), "%s: %s", form, text)
			}
		}
	}
	for _, text := range []string{
		"", "s.", "hvs.", "hvs.short", "the prefix gpuet_ marks a token", "gpuat_ marks another", "activities.ClaimNodeForTheOperation24",
		"-----BEGIN CERTIFICATE-----\nMIIB", "eyJhbGciOiJub25lIn0", "process.exitedWithStatusOneHundr", "short",
		`{"reason":"RMA-4411","node_id":"0198c0de-0000-7000-8000-000000000001"}`, "spiffe://dev/node/0198c0de/1",
		hex.EncodeToString(make([]byte, 32)), strings.Repeat("A", 300),
	} {
		require.Equal(t, text, s.Withhold(text))
		for form, text := range encoded(text) {
			require.Empty(t, s.Find([]byte(text)), "%s: %s", form, text)
		}
	}
}

// ordinary are texts that operators put into requests: none contains a secret.
func ordinary() map[string]string {
	return map[string]string{
		"host":                     "gpu-17.rack-7.eu-central-1.compute.example.com",
		"host with a token's mark": "dc1-hvs.frankfurt-datacenter-2.example",
		"host of one letter":       "s.rack-17-eu-central-row-b.example",
		"ssh key":                  "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl alice@laptop",
		"ssh fingerprint":          "SHA256:uNiVztksCsDhcc0u9e8BrrJXVGDLmjIvbCRQAdGwNQk",
		"image":                    "registry.example.com:5000/gpu/agent:v1.4.2@sha256:" + strings.Repeat("9f86d081", 8),
		"bundle":                   "H4sIAAAAAAAAA+3OMQ6CQBCF4a05xZ7AzMICB7Cyp7EwBgUTEnYxu2vi7YXCGxgTi/9rXjXJm3Xq+2c/+nXq53EZ",
		"certificate":              "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUQ2hvcnQgYnV0IHJlYWwgZW5vdWdo\n-----END CERTIFICATE-----",
		"public key":               "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----",
		"ticket":                   "INC0012345 / RMA-4411, see https://tickets.example.com/browse/OPS-98231?focusedId=558812#comment",
		"commit":                   "rolled back to 70f0a6c38a398ede43e6ee374ff41b6933c55100",
		"serial numbers":           "S/N 1324621098765, GPU-8f1c2d3e-4b5a-6978-8c9d-0e1f2a3b4c5d, WWN 0x5000c500a1b2c3d4",
		"addresses":                "10.20.30.40, fe80::1ff:fe23:4567:890a, 00:1b:44:11:3a:b7",
		"kernel module":            "nvidia.NVreg_RestrictProfilingToAdminUsers_0",
		"java class":               "org.apache.hadoop.hvs.Service",
		"host with a long label":   "hvs.frankfurtdatacenterproductionring2.example",
		"host of one letter, long": "s.rack17eucentralrowb24abc9.example",
		"method":                   "in s.RecordHeartbeatOfTheNode: deadline exceeded",
		"percent signs":            "100% of 5%zz and 7%",
	}
}

func TestFindsNothingInOrdinaryText(t *testing.T) {
	t.Parallel()
	s := scanner()
	for name, text := range ordinary() {
		require.NoError(t, s.Check(wire.RegisterNodeRequest{Host: text, Labels: map[string]string{"note": text}}), name)
		require.NoError(t, s.Check(lifecycle.OperationInput{Reason: "see " + text + "."}), name)
	}
}

// TestLearn: a secret that the process received after its start is found from then on.
func TestLearn(t *testing.T) {
	t.Parallel()
	s := secrets.New()
	require.Empty(t, s.Find([]byte(registered)))
	s.Learn(schema.NewSecret("short"))
	for range 2 {
		s.Learn(schema.NewSecret(registered))
	}
	require.Empty(t, s.Find([]byte("short")))
	for _, text := range append(leaks()["a secret of this process"], base64.StdEncoding.EncodeToString([]byte(registered))) {
		require.Equal(t, "a secret of this process", s.Find([]byte(text)), text)
	}
}

// TestCheck plants a secret into each kind of request that is stored.
func TestCheck(t *testing.T) {
	t.Parallel()
	s := scanner()
	for kind, texts := range leaks() {
		for name, request := range map[string]any{
			"a reason":       wire.LifecycleRequest{Reason: "see " + texts[0]},
			"a change":       wire.NodeChange{Reason: texts[0]},
			"a label":        wire.RegisterNodeRequest{Labels: map[string]string{"k": texts[0]}},
			"a decision":     lifecycle.ResolveRequest{Reason: texts[0]},
			"an operation":   lifecycle.OperationInput{Reason: texts[0]},
			"a name":         lifecycle.OperationInput{Actor: texts[0]},
			"a key of a map": map[string]string{texts[0]: ""},
		} {
			err := s.Check(request)
			e := schema.AsError(err)
			require.Equal(t, schema.KindInvalidRequest, e.Kind, name)
			require.Equal(t, "secret_in_request", e.Reason)
			require.Contains(t, e.Message, kind)
			require.NotContains(t, err.Error()+e.Next, texts[0], "the error repeats the secret")
		}
	}
	require.NoError(t, s.Check(lifecycle.OperationInput{Reason: "RMA-4411"}))
	require.NoError(t, s.Check(nil))
	require.Equal(t, schema.KindInternal, schema.KindOf(s.Check(map[string]any{"s": schema.NewSecret("x")})), "a typed secret does not encode")
}

// FuzzFind hides a token in each encoding, between other text.
func FuzzFind(f *testing.F) {
	const token = "hvs.CAESIJ0aBcDeFgHiJkLmNoPq"
	f.Add("", "", "")
	f.Add("100%", "\xff ", "%2")
	f.Add("eyJ.eyJ", "s.", "AAAA")
	s := scanner()
	f.Fuzz(func(t *testing.T, around, before, after string) {
		require.NotEmpty(t, s.Find([]byte(around+"\n"+token+"\n"+after)))
		for form, text := range encoded(before + " " + token) {
			require.NotEmpty(t, s.Find([]byte(around+" "+text+" "+after)), form)
		}
	})
}

// BenchmarkFind reads the longest text that a node may report.
func BenchmarkFind(b *testing.B) {
	s := scanner()
	for name, part := range map[string]string{
		"ordinary": `{"node_id":"0198c0de-0000-7000-8000-000000000001","reason":"RMA-4411"},`, "base64": "eyJhbGciOiJub25lIn0",
		"marks": "hvs.", "short marks": "s.", "claims": ".eyJ", "token marks": trust.TokenPrefix, "escapes": `\u003chvs.AAAAAAAAAAAAAAAAAAAAAAAA`, "percent": "%73%2e",
	} {
		text := []byte(strings.Repeat(part, wire.MaxResultBytes/len(part)))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				s.Find(text)
			}
		})
	}
}
