package config

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// Bounds of the fleet's secret, in bytes.
const (
	minSecret = 32
	maxSecret = 4096
)

// Secret returns the fleet's secret, nil if verdicts are not shared. Surrounding white space, such as a line end, is
// not part of it.
func (v *Verdict) Secret() ([]byte, error) {
	if v.SecretFile == "" {
		return nil, nil
	}
	file, err := os.Open(v.SecretFile)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxSecret {
		return nil, fmt.Errorf("%s: over %d bytes, too large for a secret", v.SecretFile, maxSecret)
	}
	secret := bytes.TrimSpace(content)
	if len(secret) < minSecret {
		return nil, fmt.Errorf("%s: a secret of %d bytes, at least %d are needed: openssl rand -hex %d makes one",
			v.SecretFile, len(secret), minSecret, minSecret)
	}
	return secret, nil
}

func (v *Verdict) validate() (errs []error) {
	if _, err := v.Secret(); err != nil {
		errs = append(errs, fmt.Errorf("verdict.secret_file: %w", err))
	}
	if v.SecretFile != "" && v.PinTTL == 0 {
		errs = append(errs, fmt.Errorf("verdict.secret_file: has no effect with verdict.pin_ttl 0: set only one of them"))
	}
	return errs
}
