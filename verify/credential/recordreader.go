package credential

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

// recordReader reads records of Redis, and refuses records that this sidecar can't use.
type recordReader struct {
	config  *Config
	metrics *metrics.Metrics
	log     *slog.Logger
	often   rate.Sometimes // bounds the log of refused records
}

func newRecordReader(c *Config, m *metrics.Metrics, log *slog.Logger) *recordReader {
	return &recordReader{config: c, metrics: m, log: log, often: rate.Sometimes{First: 100, Interval: time.Second}}
}

// fillRecord fills r from c. It returns why the record can't authenticate the device, or empty.
func (rr *recordReader) fillRecord(r *record, c *contract.Credential) Reason {
	switch {
	case c.Deleted:
		return reasonDeleted
	case c.Revoked:
		return reasonRevoked
	case c.Disabled:
		return reasonDisabled
	}
	for _, text := range c.Hashes {
		h, err := contract.ParseHash(text)
		if err == nil {
			err = passhash.CheckCost(h, rr.config.MaxCost)
		}
		if err != nil {
			return rr.refuseRecord("cost", c.ID, err)
		}
		pepper := rr.findPepper(h.Pepper)
		if h.Scheme == contract.GH1 && pepper == nil {
			return rr.refuseRecord("pepper", c.ID, fmt.Errorf("its pepper, %s, is none of --credential.pepper-file", h.Pepper))
		}
		r.hashes = append(r.hashes, hash{text: text, pepper: pepper})
	}
	if len(r.hashes) == 0 {
		return rr.refuseRecord("corrupt", c.ID, errors.New("no hash"))
	}
	if c.NotAfterMS > 0 {
		r.notAfter = time.UnixMilli(min(c.NotAfterMS, limits.MaxTime))
	}
	if c.OldUntilMS > 0 {
		r.oldUntil = time.UnixMilli(min(c.OldUntilMS, limits.MaxTime))
		if !time.Now().Before(r.oldUntil) {
			r.hashes = r.hashes[:1:1]
		}
	}
	r.permissions = joinNames(c.Permissions)
	return ""
}

// findPepper returns the pepper with this ID, nil for none.
func (rr *recordReader) findPepper(id string) *contract.Pepper {
	for i := range rr.config.Peppers {
		if rr.config.Peppers[i].ID == id {
			return &rr.config.Peppers[i]
		}
	}
	return nil
}

// refuseRecord counts and logs a record that can't be used.
func (rr *recordReader) refuseRecord(reason, id string, err error) Reason {
	rr.metrics.Refused.WithLabelValues(reason).Inc()
	rr.often.Do(func() {
		rr.log.Warn("credential record refused: the device can't authenticate", "device", id, "error", err)
	})
	return reasonRefusedRecord
}
