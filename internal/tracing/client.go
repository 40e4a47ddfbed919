package tracing

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// maxAnswer bounds the bytes of an answer that are read.
const maxAnswer = 64 << 10

// client implements [otlptrace.Client]: it posts spans to a URL. OpenTelemetry's own client would add gRPC to the
// program, see docs/decisions/operation.md.
type client struct{ url string }

// newClient returns the exporter to a collector, which connects with the first export.
func newClient(endpoint string) (sdk.SpanExporter, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	return otlptrace.NewUnstarted(client{u.String()}), nil
}

// Start implements [otlptrace.Client].
func (client) Start(context.Context) error { return nil }

// Stop implements [otlptrace.Client].
func (client) Stop(context.Context) error { return nil }

// UploadTraces implements [otlptrace.Client]. On the wire TracesData equals ExportTraceServiceRequest, whose package
// contains gRPC.
func (c client) UploadTraces(ctx context.Context, spans []*traces.ResourceSpans) error {
	body, err := proto.Marshal(&traces.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-protobuf")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer)); err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answered %s", response.Status)
	}
	return nil
}
