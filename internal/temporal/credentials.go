package temporal

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpuaas/gpuaas/schema"
)

// envAPIKeyFile names the file of an API key. The temporal command has no such variable;
// the others that clientOptions reads are its own.
const envAPIKeyFile = "TEMPORAL_API_KEY_FILE"

// clientOptions reads the address and the credentials of Temporal from the profile and
// the environment of the temporal command. A client certificate and the file of an API
// key are read again for each connection or call, so that a rotated one is used without
// a restart. It also returns the API key, which must not reach Temporal as data.
func clientOptions(env envconfig.EnvLookup) (client.Options, schema.Secret, error) {
	none := schema.NewSecret("")
	profile, err := envconfig.LoadClientConfigProfile(envconfig.LoadClientConfigProfileOptions{EnvLookup: env})
	if err != nil {
		return client.Options{}, none, err
	}
	file, _ := env.LookupEnv(envAPIKeyFile)
	if file != "" && profile.APIKey != "" {
		return client.Options{}, none, errors.New("set either TEMPORAL_API_KEY or " + envAPIKeyFile)
	}
	if file != "" {
		if profile.APIKey, err = readAPIKey(file); err != nil {
			return client.Options{}, none, err
		}
	}
	opts, err := profile.ToClientOptions(envconfig.ToClientOptionsRequest{})
	if err != nil {
		return client.Options{}, none, err
	}
	if file != "" {
		opts.Credentials = client.NewAPIKeyDynamicCredentials(func(context.Context) (string, error) {
			key, err := readAPIKey(file)
			if err != nil {
				err = status.Error(codes.Unauthenticated, err.Error())
			}
			return key, err
		})
	}
	if t := opts.ConnectionOptions.TLS; t != nil && profile.TLS != nil && profile.TLS.ClientCertPath != "" {
		t.Certificates = nil
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(profile.TLS.ClientCertPath, profile.TLS.ClientKeyPath)
			return &pair, err
		}
	}
	return opts, schema.NewSecret(profile.APIKey), nil
}

func readAPIKey(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", envAPIKeyFile, err)
	}
	key := strings.TrimSpace(string(raw))
	if key == "" {
		return "", fmt.Errorf("%s: %s is empty", envAPIKeyFile, file)
	}
	return key, nil
}
