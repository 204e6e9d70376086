package lifecycle

// OpCommand is the command line that works on a node's operation, for example
// gpuaas op retry gpu-17. A reissue does not hold its node, so the commands for
// one say that it is meant.
func OpCommand(verb string, a Action, node string) string {
	c := "gpuaas op " + verb + " " + node
	if a == ActionReissueEnrollment {
		c += " --reissue"
	}
	return c
}
