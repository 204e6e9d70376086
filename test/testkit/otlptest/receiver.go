// Package otlptest receives the spans that programs export over OTLP.
package otlptest

import (
	"bytes"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span as a program exported it.
type Span struct {
	// TraceID is in hexadecimal.
	TraceID, Service, Name string
	// Attributes are the attributes that are texts.
	Attributes map[string]string
}

// Receiver is a collector of traces (OTLP over HTTP). It is safe for concurrent use.
type Receiver struct {
	server *httptest.Server
	mu     sync.Mutex
	spans  []Span
	raw    bytes.Buffer
}

// Start starts a receiver on a free port. The caller closes it.
func Start() *Receiver {
	r := &Receiver{}
	r.server = httptest.NewServer(http.HandlerFunc(r.receive))
	return r
}

// URL is the value of OTEL_EXPORTER_OTLP_ENDPOINT.
func (r *Receiver) URL() string { return r.server.URL }

// Close stops the receiver.
func (r *Receiver) Close() { r.server.Close() }

// Trace returns the spans of a trace.
func (r *Receiver) Trace(id string) (spans []Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.TraceID == id {
			spans = append(spans, s)
		}
	}
	return spans
}

// Raw returns everything that was received, as it was sent.
func (r *Receiver) Raw() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.raw.Bytes())
}

func (r *Receiver) receive(w http.ResponseWriter, req *http.Request) {
	var export collector.ExportTraceServiceRequest
	body, err := io.ReadAll(req.Body)
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	if err != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, "not an export of traces", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw.Write(body)
	for _, resource := range export.GetResourceSpans() {
		service := texts(resource.GetResource().GetAttributes())["service.name"]
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans = append(r.spans, Span{TraceID: hex.EncodeToString(s.GetTraceId()), Service: service, Name: s.GetName(), Attributes: texts(s.GetAttributes())})
			}
		}
	}
}

// texts returns the attributes that are texts.
func texts(attributes []*common.KeyValue) map[string]string {
	found := map[string]string{}
	for _, a := range attributes {
		found[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return found
}
