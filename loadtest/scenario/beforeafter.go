package scenario

import (
	"context"
)

func beforeAfter(ctx context.Context, o *Options, out *Recorder) (err error) { return nil }
