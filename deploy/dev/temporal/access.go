package main

import (
	"fmt"
	"os"

	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"gopkg.in/yaml.v3"
)

// access is what decides about calls, as the server's own main program wires it.
type access struct {
	restricted bool
	authorizer authorization.Authorizer
	claims     authorization.ClaimMapper
	audience   authorization.JWTAudienceMapper
}

// readAccess reads global.authorization of a server configuration; without a file,
// everything is allowed.
func readAccess(file string, logger log.Logger) (a access, err error) {
	var c struct {
		Global struct {
			Authorization config.Authorization `yaml:"authorization"`
		} `yaml:"global"`
	}
	if file != "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return a, fmt.Errorf("--authorization: %w", err)
		}
		if err := yaml.Unmarshal(raw, &c); err != nil {
			return a, fmt.Errorf("--authorization %s: %w", file, err)
		}
	}
	settings := &c.Global.Authorization
	a.restricted = settings.Authorizer != ""
	if a.authorizer, err = authorization.GetAuthorizerFromConfig(settings); err != nil {
		return a, err
	}
	if a.claims, err = authorization.GetClaimMapperFromConfig(settings, logger); err != nil {
		return a, err
	}
	a.audience, err = authorization.GetAudienceMapperFromConfig(settings)
	return a, err
}
