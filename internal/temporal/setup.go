package temporal

import (
	"context"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// retention is how long a namespace that Setup creates keeps closed operations.
const retention = 30 * 24 * time.Hour

// setupBudget bounds Setup: a new namespace takes seconds to reach every cache.
const setupBudget = time.Minute

// Setup creates the namespace, the search attributes and the schedules, and
// waits until they can be used. It is idempotent.
func (c Installation) Setup(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setupBudget)
	defer cancel()
	if err := c.ensureNamespace(ctx); err != nil {
		return err
	}
	if err := c.ensureAttributes(ctx); err != nil {
		return err
	}
	return c.ensureSchedules(ctx)
}

func (c Installation) ensureNamespace(ctx context.Context) error {
	_, err := c.sdk.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace: c.namespace, WorkflowExecutionRetentionPeriod: durationpb.New(retention),
		Description: "GPU node lifecycle operations (gpuaas)",
	})
	if is[*serviceerror.NamespaceAlreadyExists](err) {
		return nil
	}
	return c.interpret(err, "creating the namespace")
}

func (c Installation) ensureAttributes(ctx context.Context) error {
	missing, err := c.missingAttributes(ctx)
	for is[*serviceerror.NamespaceNotFound](err) { // a new namespace has not reached the server's cache
		select {
		case <-ctx.Done():
			return c.interpret(ctx.Err(), "waiting for the new namespace")
		case <-time.After(200 * time.Millisecond):
			missing, err = c.missingAttributes(ctx)
		}
	}
	if err != nil || len(missing) == 0 {
		return c.interpret(err, "listing search attributes")
	}
	_, err = c.sdk.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace: c.namespace, SearchAttributes: missing,
	})
	if err != nil && !is[*serviceerror.AlreadyExists](err) {
		return c.interpret(err, "adding search attributes")
	}
	return c.MissingAttributes(ctx)
}

// MissingAttributes returns nil when every search attribute exists. The worker calls
// it before it starts: a missing attribute would block every operation.
func (c Installation) MissingAttributes(ctx context.Context) error {
	missing, err := c.missingAttributes(ctx)
	if err != nil {
		return c.interpret(err, "listing search attributes")
	}
	if len(missing) > 0 {
		return schema.NewError(schema.KindServiceUnavailable, "namespace %q lacks %d search attributes", c.namespace, len(missing)).
			WithReason("search_attributes_missing").WithNext("gpuaas admin setup")
	}
	return nil
}

func (c Installation) missingAttributes(ctx context.Context) (map[string]enumspb.IndexedValueType, error) {
	have, err := c.sdk.OperatorService().ListSearchAttributes(ctx,
		&operatorservice.ListSearchAttributesRequest{Namespace: c.namespace})
	if err != nil {
		return nil, err
	}
	missing := map[string]enumspb.IndexedValueType{}
	for name, datetime := range lifecycle.Attributes() {
		if _, exists := have.GetCustomAttributes()[name]; exists {
			continue
		}
		missing[name] = enumspb.INDEXED_VALUE_TYPE_KEYWORD
		if datetime {
			missing[name] = enumspb.INDEXED_VALUE_TYPE_DATETIME
		}
	}
	return missing, nil
}
