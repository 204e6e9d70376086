package temporal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// emptyNamespace returns a client to a namespace that exists and has no search attributes.
func emptyNamespace(t *testing.T, skip bool) *Client {
	t.Helper()
	c, err := Dial(Config{Address: server.Address(t), Namespace: "t-" + schema.NewID(), SkipNamespace: skip})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	_, err = c.sdk.WorkflowService().RegisterNamespace(t.Context(), &workflowservice.RegisterNamespaceRequest{
		Namespace: c.namespace, WorkflowExecutionRetentionPeriod: durationpb.New(48 * time.Hour)})
	require.NoError(t, err)
	harness.Eventually(t, "the namespace", func() bool {
		_, err := c.sdk.OperatorService().ListSearchAttributes(t.Context(), &operatorservice.ListSearchAttributesRequest{Namespace: c.namespace})
		return err == nil
	})
	return c
}

func TestSetupKeepsAnExistingNamespace(t *testing.T) {
	t.Parallel()
	c := emptyNamespace(t, false)
	require.NoError(t, c.Installation.Setup(t.Context()))
	require.NoError(t, c.Installation.MissingAttributes(t.Context()))
	keeps, err := c.Installation.Retention(t.Context())
	require.NoError(t, err)
	require.Equal(t, 48*time.Hour, keeps)
}

func TestSetupSkipsTheNamespace(t *testing.T) {
	t.Parallel()
	absent, err := Dial(Config{Address: server.Address(t), Namespace: "absent", SkipNamespace: true})
	require.NoError(t, err)
	t.Cleanup(absent.Close)
	err = absent.Installation.Setup(t.Context())
	require.Equal(t, reasonNoNamespace, schema.AsError(err).Reason)
	require.True(t, NeedsOther(err))

	c := emptyNamespace(t, true)
	err = c.Installation.Setup(t.Context())
	require.Equal(t, reasonNoAttributes, schema.AsError(err).Reason)
	require.ErrorContains(t, err, lifecycle.AttrStuckReason)
	require.True(t, NeedsOther(err))
	_, err = c.sdk.OperatorService().AddSearchAttributes(t.Context(), &operatorservice.AddSearchAttributesRequest{
		Namespace: c.namespace, SearchAttributes: attributeTypes()})
	require.NoError(t, err)
	require.NoError(t, c.Installation.Setup(t.Context()))
}

func TestSearchAttributesMustBeUsable(t *testing.T) {
	t.Parallel()
	c := emptyNamespace(t, false)
	require.True(t, is[*serviceerror.InvalidArgument](c.Installation.useAttributes(t.Context())))
	require.Equal(t, reasonNoAttributes, schema.AsError(c.Installation.unusable(c.Installation.useAttributes(t.Context()))).Reason)

	types := attributeTypes()
	types[lifecycle.AttrHost], types[lifecycle.AttrStuckSince] = enumspb.INDEXED_VALUE_TYPE_TEXT, enumspb.INDEXED_VALUE_TYPE_KEYWORD
	delete(types, lifecycle.AttrRegion)
	_, err := c.sdk.OperatorService().AddSearchAttributes(t.Context(), &operatorservice.AddSearchAttributesRequest{Namespace: c.namespace, SearchAttributes: types})
	require.NoError(t, err)
	for name, check := range map[string]error{"setup": c.Installation.Setup(t.Context()), "worker": c.Installation.MissingAttributes(t.Context())} {
		e := schema.AsError(check)
		require.Equal(t, "search_attribute_type", e.Reason, name)
		require.Contains(t, e.Message, "Host is Text and must be Keyword; StuckSince is Keyword and must be Datetime", name)
	}
}

func TestInstructions(t *testing.T) {
	t.Parallel()
	c, err := Dial(Config{Address: unusedAddress, Namespace: "prod.a1b2c"})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	text := c.Installation.Instructions()
	for name, kind := range attributeTypes() {
		require.Contains(t, text, "--sa "+name+"="+kind.String())
		require.Contains(t, text, name+` = "`+kind.String()+`"`)
		require.Contains(t, text, "--name "+name+" --type "+kind.String())
	}
	require.Contains(t, text, "tcld namespace search-attributes add --namespace prod.a1b2c")
	require.Contains(t, text, "--retention 720h")
	require.NotContains(t, text, "NAMESPACE ")
}
