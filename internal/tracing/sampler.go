package tracing

import (
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/time/rate"
)

// perSecond bounds the traces per second that clients ask for by a sampled traceparent, and separately the traces that
// begin here. A client that asks for a trace of each request uses up the first bound, and has no effect on the second.
const perSecond = 100

// newSampler returns a sampler that follows the client's decision within the bound, and otherwise samples the ratio.
func newSampler(ratio float64) sdk.Sampler {
	return sdk.ParentBased(newLimited(sdk.TraceIDRatioBased(ratio)),
		sdk.WithRemoteParentSampled(newLimited(sdk.AlwaysSample())))
}

// limited samples at most perSecond traces in a second.
type limited struct {
	sdk.Sampler
	limiter *rate.Limiter
}

func newLimited(s sdk.Sampler) limited { return limited{s, rate.NewLimiter(perSecond, perSecond)} }

// ShouldSample implements [sdk.Sampler].
func (l limited) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	result := l.Sampler.ShouldSample(p)
	if result.Decision == sdk.RecordAndSample && !l.limiter.Allow() {
		result.Decision = sdk.Drop
	}
	return result
}
