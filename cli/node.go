package cli

import "github.com/spf13/cobra"

func newNode(e *env) *cobra.Command {
	return newGroup("node", "Nodes and their lifecycle", "Registers, reads and operates nodes.",
		newNodeRegister(e), newNodeList(e), newNodeShow(e), newNodeSet(e), newNodeEnroll(e), newNodeProvision(e),
		newNodeQuarantine(e), newNodeRelease(e), newNodeDrain(e), newNodeUncordon(e), newNodeRetire(e), newNodeReactivate(e), newNodeRemove(e),
		newNodeReissue(e), newNodeScript(e))
}
