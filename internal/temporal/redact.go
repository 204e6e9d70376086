package temporal

import (
	"encoding/json"

	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/secrets"
)

// UpdateGuard returns a worker interceptor that rejects updates with a secret. Temporal
// records the arguments of an update when the workflow accepts it, and nothing of one that
// it rejects.
func (c *connection) UpdateGuard() interceptor.WorkerInterceptor {
	return &updateGuard{scanner: c.scanner}
}

type updateGuard struct {
	interceptor.WorkerInterceptorBase
	scanner *secrets.Scanner
}

// InterceptWorkflow implements interceptor.WorkerInterceptor.
func (u *updateGuard) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &guardedUpdates{interceptor.WorkflowInboundInterceptorBase{Next: next}, u.scanner}
}

type guardedUpdates struct {
	interceptor.WorkflowInboundInterceptorBase
	scanner *secrets.Scanner
}

// ValidateUpdate implements interceptor.WorkflowInboundInterceptor. It does not run when
// a history is replayed.
func (g *guardedUpdates) ValidateUpdate(ctx workflow.Context, in *interceptor.UpdateInput) error {
	if err := g.scanner.Check(in.Args); err != nil {
		return activities.Failure(schema.AsError(err), true)
	}
	return g.Next.ValidateUpdate(ctx, in)
}

// redacted returns a copy of a message in which a note replaces each text with a secret.
func (g guard) redacted(m proto.Message) proto.Message {
	out := proto.Clone(m)
	// The protocol messages of updates are in fields of type Any, which Range expands.
	// Its errors are those of messages that do not encode: the caller scans the copy.
	_ = protorange.Range(out.ProtoReflect(), func(v protopath.Values) error {
		m, ok := v.Index(-1).Value.Interface().(protoreflect.Message)
		if ok && m.Descriptor().FullName() != "google.protobuf.Any" {
			g.redactFields(m)
		}
		return nil
	})
	return out
}

// redactFields redacts the texts of one message, not those of the messages in it.
func (g guard) redactFields(m protoreflect.Message) {
	if g.scanner.Find(m.GetUnknown()) != "" {
		m.SetUnknown(nil)
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			g.redactMap(f, v.Map())
		case f.IsList():
			for i, list := 0, v.List(); i < list.Len(); i++ {
				list.Set(i, g.redactValue(f.Kind(), list.Get(i)))
			}
		case f.Kind() == protoreflect.StringKind || f.Kind() == protoreflect.BytesKind:
			m.Set(f, g.redactValue(f.Kind(), v))
		}
		return true
	})
}

// redactMap drops the entries whose key contains a secret.
func (g guard) redactMap(f protoreflect.FieldDescriptor, entries protoreflect.Map) {
	entries.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if g.scanner.Find([]byte(k.String())) != "" {
			entries.Clear(k)
			return true
		}
		entries.Set(k, g.redactValue(f.MapValue().Kind(), v))
		return true
	})
}

func (g guard) redactValue(kind protoreflect.Kind, v protoreflect.Value) protoreflect.Value {
	switch kind {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(g.scanner.Withhold(v.String()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(g.redactData(v.Bytes()))
	}
	return v
}

// redactData redacts the data of a payload, which is JSON: the strings in it, so that it
// keeps its form, or all of it.
func (g guard) redactData(data []byte) []byte {
	if g.scanner.Find(data) == "" {
		return data
	}
	if clean, err := g.scanner.WithholdJSON(data); err == nil && g.scanner.Find(clean) == "" {
		return clean
	}
	note, _ := json.Marshal(g.scanner.Withhold(string(data))) // a string always encodes
	return note
}
