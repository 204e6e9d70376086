package adminapi

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Bounds of selectors and labels.
const (
	maxRequirements = 20
	maxLabels       = 64
)

var (
	nameForm       = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	skuForm        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	patternForm    = regexp.MustCompile(`^[A-Za-z0-9._:*?-]{1,253}$`) // a host name with the wildcards * and ?
	reasonForm     = regexp.MustCompile(`^[a-z0-9_]{1,64}$`)          // the reason of a schema.Error
	labelKeyForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$`)
	labelValueForm = regexp.MustCompile(`^[A-Za-z0-9._-]{0,63}$`)
)

func badField(field, why string) error {
	return schema.NewError(schema.KindInvalidRequest, "%s %s", field, why).WithReason("bad_" + field).
		WithNext("correct " + field + " and repeat the request")
}

// validHost accepts an IP address without a zone or a DNS name. A node id is neither:
// commands interpret it as the id of a node.
func validHost(s string) bool { return text.IsHost(s) && !schema.IsID(s) }

// validName accepts 1 to most characters of a-z A-Z 0-9 . _ -
func validName(s string, most int) bool { return len(s) <= most && nameForm.MatchString(s) }

// validDriver accepts the name of a workload driver, several of them, and none.
func validDriver(s string) bool { return s == "" || inventory.ValidDrivers(s) }

// badDriver rejects the name of a workload driver.
func badDriver() error {
	return badField("workload_driver", "must be "+text.Or(inventory.Drivers())+", or the name of a driver that your agents have: 1 to 32 of a-z A-Z 0-9 _ -; "+
		"separate several drivers of one node by commas")
}

// checkReason rejects a reason that has no content.
func checkReason(reason string, required bool) error {
	bad := func(why string) error {
		return schema.NewError(schema.KindInvalidRequest, "reason %s", why).WithReason("bad_reason").
			WithNext("give a reason in one line, for example a ticket, and repeat the request")
	}
	switch trimmed := strings.TrimSpace(reason); {
	case !text.IsLine(reason, wire.MaxReason):
		return bad("must be one line of at most 500 characters")
	case required && trimmed == "":
		return bad("is required: it is kept in the audit trail")
	case trimmed == lifecycle.ReasonPlaceholder:
		return bad("is the placeholder TEXT: give the reason itself")
	}
	return nil
}

// checkLabels rejects labels that no selector could name.
func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return badField("labels", "must be at most 64 per node")
	}
	for k, v := range labels {
		if err := checkLabelKey(k); err != nil {
			return err
		}
		if !labelValueForm.MatchString(v) {
			return badField("labels", "must have values of 0 to 63 characters of a-z A-Z 0-9 . _ -")
		}
	}
	return nil
}

func checkLabelKey(key string) error {
	switch {
	case !labelKeyForm.MatchString(key):
		return badField("labels", "must have keys of 1 to 63 characters of a-z A-Z 0-9 . _ / - that begin with a letter or digit")
	case slices.Contains(PropertyKeys(), key):
		return badField("labels", "must not have the key "+key+", which names a property of the node")
	}
	return nil
}
