package cli

import "github.com/spf13/cobra"

func newOp(e *env) *cobra.Command {
	return newGroup("op", "The running operation of a node",
		"Shows a node's operation, follows it, and hands over the decisions it may wait for.",
		newOpShow(e), newOpWatch(e), newOpRetry(e), newOpSkip(e), newOpCancel(e), newOpForce(e), newOpExtend(e))
}
