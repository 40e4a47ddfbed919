package report

import (
	"context"
	"fmt"
	"os/exec"
)

// Top is the ten functions that a profile has most of, as text.
func Top(ctx context.Context, path string) (string, error) {
	text, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-top", "-nodecount=10", path).Output()
	if err != nil {
		return "", fmt.Errorf("go tool pprof -top %s: %w", path, err)
	}
	return string(text), nil
}
