package schema_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestDecodeStrict(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"unknown field":    `{"token":"t","extra":1}`,
		"repeated field":   `{"token":"a","token":"b"}`,
		"repeated by case": `{"token":"a","Token":"b"}`,
		"data after it":    `{"token":"a"}{}`,
		"truncated":        `{"token":`,
		"empty":            ``,
		"wrong type":       `{"token":1}`,
		"deep":             strings.Repeat("[", 100) + strings.Repeat("]", 100),
		"too large":        `{"token":"` + strings.Repeat("x", 2000) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var v wire.EnrollRequest
			require.Equal(t, schema.KindInvalidRequest, schema.KindOf(schema.DecodeStrict([]byte(body), 1000, &v)))
		})
	}
	var v wire.EnrollRequest
	require.NoError(t, schema.DecodeStrict([]byte(` {"token":"a","csr":"b"} `), 1000, &v))
	require.Equal(t, wire.EnrollRequest{Token: "a", CSR: "b"}, v)
}

// FuzzDecodeStrict holds that what schema.DecodeStrict takes, the lenient decoder
// reads the same way: nothing is understood differently by two readers.
func FuzzDecodeStrict(f *testing.F) {
	f.Add([]byte(`{"v":1,"env":"dev","params":{"a":[1,{"b":2}]}}`))
	f.Add([]byte(`{"v":1,"V":2}`))
	f.Add([]byte(`{"env":"a","env":"b"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var strict, lenient task.Payload
		if err := schema.DecodeStrict(data, 1<<16, &strict); err != nil {
			require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
			return
		}
		require.NoError(t, json.Unmarshal(data, &lenient))
		require.Equal(t, lenient, strict)
	})
}
