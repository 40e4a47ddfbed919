package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// Bounds of the fleet's secret, and of a file with a pepper, in bytes.
const (
	minSecret = 32
	maxSecret = 4096
	// maxPeppers bounds the peppers: two are enough to change a pepper.
	maxPeppers = 4
)

// ReadSecret returns the fleet's secret, nil if verdicts are not shared.
func (v *Verdict) ReadSecret() ([]byte, error) { return readSecret(v.SecretFile) }

// readSecret returns the secret in a file, nil if name is "". Surrounding white space, such as a line end, is not part
// of the secret.
func readSecret(name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	content, err := readSecretFile(name)
	if err != nil {
		return nil, err
	}
	secret := bytes.TrimSpace(content)
	if len(secret) < minSecret {
		return nil, fmt.Errorf("%s: a secret of %d bytes, at least %d are needed: openssl rand -hex %d makes one",
			name, len(secret), minSecret, minSecret)
	}
	return secret, nil
}

// readSecretFile returns the content of a file with a secret.
func readSecretFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err == nil && len(content) > maxSecret {
		err = fmt.Errorf("%s: over %d bytes, too large for a secret", name, maxSecret)
	}
	return content, err
}

// ReadPeppers returns the peppers of gh1, in the order of the files.
func (c *Credential) ReadPeppers() ([]contract.Pepper, error) {
	var peppers []contract.Pepper
	for _, name := range c.PepperFile {
		content, err := readSecretFile(name)
		if err != nil {
			return nil, err
		}
		pepper, err := contract.NewPepper(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for i := range peppers {
			if peppers[i].ID == pepper.ID {
				return nil, fmt.Errorf("%s: is the same pepper as %s", name, c.PepperFile[i])
			}
		}
		peppers = append(peppers, pepper)
	}
	return peppers, nil
}

func (c *Credential) validate() (errs []error) {
	if _, err := c.ReadPeppers(); err != nil {
		errs = append(errs, fmt.Errorf("credential.pepper_file: %w", err))
	}
	if len(c.PepperFile) > maxPeppers {
		errs = append(errs, fmt.Errorf("credential.pepper_file: %d files, at most %d are allowed", len(c.PepperFile),
			maxPeppers))
	}
	if c.Upgrade && len(c.PepperFile) == 0 {
		errs = append(errs, errors.New("credential.upgrade: has no effect without credential.pepper_file"))
	}
	return errs
}

func (v *Verdict) validate() (errs []error) {
	if _, err := v.ReadSecret(); err != nil {
		errs = append(errs, fmt.Errorf("verdict.secret_file: %w", err))
	}
	if v.SecretFile != "" && v.PinTTL == 0 {
		errs = append(errs, fmt.Errorf("verdict.secret_file: has no effect with verdict.pin_ttl 0: set only one of them"))
	}
	return errs
}
