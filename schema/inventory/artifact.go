package inventory

import (
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

// The artifacts that agents report without configuration. The files of GPUAAS_ARTIFACTS have names
// of their own.
const (
	// ArtifactAgent is the version of the agent, from its heartbeats.
	ArtifactAgent = "agent"
	// ArtifactVerifierSet is the version of the verifier set that the node uses, from its polls.
	ArtifactVerifierSet = "verifier_set"
	ArtifactAgentBinary = "agent_binary" // SHA-256 of the agent's binary
	ArtifactKernel      = "kernel"       // release of the running kernel
	ArtifactOSImage     = "os_image"     // IMAGE_ID and IMAGE_VERSION of os-release, or ID and VERSION_ID
	ArtifactGPUDriver   = "gpu_driver"   // version of the loaded driver of NVIDIA
	ArtifactCABundle    = "ca_bundle"    // SHA-256 of the bundle that verifies the node API
)

// Limits of the artifacts of a node and of a template.
const (
	MaxArtifacts        = 32
	MaxArtifactName     = 64
	MaxArtifactVersion  = 128
	artifactPunctuation = "._/-"
)

// Unreadable is the reported version of a file that exists and could not be read.
const Unreadable = "unreadable"

// ValidArtifact reports whether s can be the name of an artifact.
func ValidArtifact(s string) bool { return text.IsToken(s, MaxArtifactName, artifactPunctuation) }

// CheckArtifacts reports why versions and digests by name are not valid, as KindInvalidRequest.
func CheckArtifacts(artifacts map[string]string) error {
	valid := len(artifacts) <= MaxArtifacts
	for name, v := range artifacts {
		valid = valid && ValidArtifact(name) && v != "" && text.IsPrintable(v, MaxArtifactVersion)
	}
	if valid {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest,
		"artifacts must be at most %d versions of 1 to %d printable ASCII characters, by names of at most %d of a-z A-Z 0-9 . _ / -",
		MaxArtifacts, MaxArtifactVersion, MaxArtifactName).WithReason("bad_artifacts")
}
