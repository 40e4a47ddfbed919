package main

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
)

const (
	// maxImport bounds the devices of a file: to detect duplicates, an import keeps some 16 bytes for each id.
	maxImport = 10_000_000
	// importBatch is how many devices are written at once.
	importBatch = 512
	// maxPrinted bounds the printed errors of lines.
	maxPrinted = 100
)

type deviceImportCmd struct {
	File     string `arg:"" placeholder:"FILE" help:"CSV whose first line names its columns, of id, secret, hash, permissions, labels and not_after, or JSON lines as device export prints them, or lines ID:HASH; - is standard input."`
	Generate bool   `help:"Make a secret for each device that has neither a secret nor a hash."`
	Secrets  string `placeholder:"FILE" help:"File for generated secrets, one JSON object with id, secret and hash a line, each on disk before its device is written. It must not exist, except with --resume."`
	Resume   bool   `help:"Continue an import that was interrupted: the secrets in the file of --secrets count."`
	Replace  bool   `help:"Replace other records of these devices, also revoked or deleted ones, instead of failing for their lines."`
	DryRun   bool   `help:"Check the file only, and connect to nothing."`
	Rate     int    `placeholder:"N" help:"Devices a second at most. Default: no limit."`
	Cost     int    `default:"${cost}" help:"bcrypt cost of secrets, 4 to 15, at most the sidecars' bcrypt.max-cost."`

	pepperFlag `embed:""`
	jsonFlag   `embed:""`
}

// Run imports the devices of the file.
func (cmd *deviceImportCmd) Run(c *console) error {
	switch {
	case cmd.Cost < contract.MinCost || cmd.Cost > contract.MaxCost:
		return usagef("--cost %d: is out of %d to %d", cmd.Cost, contract.MinCost, contract.MaxCost)
	case cmd.Rate < 0:
		return usagef("--rate %d: want a number from 1, or 0 for no limit", cmd.Rate)
	case cmd.Generate != (cmd.Secrets != "") && !cmd.DryRun:
		return usagef("device import: --generate and --secrets need each other")
	}
	i := &importer{deviceImportCmd: cmd, console: c, seed: maphash.MakeSeed(), seen: map[uint64]struct{}{},
		progress: newProgress(c, "devices")}
	in := c.stdin
	if cmd.File != "-" {
		file, err := os.Open(cmd.File)
		if err != nil {
			return err
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			i.progress.size = info.Size()
		}
		in = file
	}
	var err error
	if i.key, err = cmd.readPepper(c); err != nil {
		return err
	}
	if i.lines, err = newDeviceLines(in); err != nil {
		return usagef("%s: %w", printable(cmd.File), err)
	}
	if cmd.DryRun {
		return i.run(context.Background())
	}
	if cmd.Generate {
		if i.secrets, err = openSecrets(cmd.Secrets, cmd.Resume); err != nil {
			return err
		}
		defer i.secrets.close()
	}
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		i.publisher = p
		return i.run(ctx)
	})
}

// importer is a running import. One goroutine reads lines and makes hashes, a second goroutine writes.
type importer struct {
	*deviceImportCmd
	*console
	publisher *publish.Publisher // nil in a dry run
	key       *contract.Pepper   // nil without --pepper-file

	// Fields of the reading goroutine.
	lines   *deviceLines
	secrets *secretsFile // nil without --generate
	seed    maphash.Seed
	seen    map[uint64]struct{} // ids, by their hash
	nice    bool                // the priority was lowered

	// Fields of the writing goroutine.
	progress                   progress
	written, unchanged, failed int
}

// batch is the devices of consecutive lines.
type batch struct {
	devices   []publish.Device
	lines     []int  // the line of each
	generated []bool // whether the device's secret was generated
	errs      map[int]error
	bytes     int64 // of the file up to the end of the batch
	err       error // ends the import; io.EOF at the end of the file
}

func (i *importer) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	batches := make(chan *batch, 1)
	go func() {
		defer close(batches)
		for end := false; !end; {
			b := i.readBatch(ctx)
			end = b.err != nil
			select {
			case batches <- b:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		cancel()
		for range batches { // until the reader has ended
		}
	}()
	limit := rate.NewLimiter(rate.Inf, 0)
	if i.Rate > 0 {
		limit = rate.NewLimiter(rate.Limit(i.Rate), i.batchSize())
	}
	for b := range batches {
		if err := limit.WaitN(ctx, len(b.devices)); err != nil {
			return err
		}
		err := i.writeBatch(ctx, b)
		if err == nil && !errors.Is(b.err, io.EOF) {
			err = b.err
		}
		i.reportBatch(b)
		if err != nil {
			i.progress.clear()
			return fmt.Errorf("%s: stopped after %d devices; import it again to continue: %w", printable(i.File),
				i.progress.done, err)
		}
	}
	i.progress.clear()
	devices := i.progress.done
	var err error
	if i.DryRun {
		err = i.printResult(i.console, map[string]any{"devices": devices, "valid": i.written, "failed": i.failed},
			"%d devices: %d valid, %d failed; nothing was written\n", devices, i.written, i.failed)
	} else {
		err = i.printResult(i.console, map[string]any{"devices": devices, "written": i.written, "unchanged": i.unchanged,
			"failed": i.failed}, "%d devices: %d written, %d unchanged, %d failed\n", devices, i.written, i.unchanged, i.failed)
	}
	if err != nil {
		return err
	}
	if i.failed > 0 {
		return fmt.Errorf("%s: %d of %d devices failed", printable(i.File), i.failed, devices)
	}
	return nil
}

// batchSize is the maximum size of a batch. With --rate, some ten batches a second are written.
func (i *importer) batchSize() int {
	if i.Rate > 0 {
		return min(importBatch, max(1, i.Rate/10))
	}
	return importBatch
}

// readBatch reads a batch, and hashes the secrets.
func (i *importer) readBatch(ctx context.Context) *batch {
	b := &batch{errs: map[int]error{}}
	secrets, most := 0, 8*runtime.GOMAXPROCS(0) // a second of bcrypt or two
	for b.err == nil && len(b.devices)+len(b.errs) < i.batchSize() && secrets < most {
		d, err := i.lines.nextDevice()
		var generate bool
		if err == nil {
			generate, err = i.checkDevice(&d)
		}
		switch {
		case errors.Is(err, errLine):
			b.errs[i.lines.line] = err
		case err != nil:
			b.err = err
		default:
			b.devices, b.lines = append(b.devices, d), append(b.lines, i.lines.line)
			b.generated = append(b.generated, generate)
			if d.Secret != "" {
				secrets++
			}
		}
	}
	b.bytes = i.lines.bytes
	if secrets > 0 && !i.DryRun {
		if err := i.hashSecrets(ctx, b); err != nil {
			b.devices, b.lines, b.err = nil, nil, err
		}
	}
	return b
}

// checkDevice checks a device. With --generate, a device without secret and hash gets a secret.
func (i *importer) checkDevice(d *publish.Device) (generate bool, err error) {
	generate = i.Generate && d.Secret == "" && len(d.Hashes) == 0 && !d.Disabled
	if generate {
		d.Secret = publish.NewSecret()
	}
	d.Cost = i.Cost
	if d.Secret == "" && len(d.Hashes) == 0 && !d.Disabled {
		return false, lineError{fmt.Errorf("device %q: has neither a secret nor a hash; --generate makes one", d.ID)}
	}
	if err := d.Check(); err != nil {
		return false, lineError{err}
	}
	id := maphash.String(i.seed, d.ID)
	if _, twice := i.seen[id]; twice {
		return false, lineError{fmt.Errorf("device %q: came before", d.ID)}
	}
	if len(i.seen) == maxImport {
		return false, fmt.Errorf("over %d devices: split the file", maxImport)
	}
	i.seen[id] = struct{}{}
	if !generate || i.secrets == nil {
		return generate, nil
	}
	before, found, err := i.secrets.findSecret(d.ID)
	if found {
		d.Secret, d.Hashes = "", []string{before.Hash}
	}
	return !found, err
}

// hashSecrets replaces secrets by hashes, and appends generated secrets to the secrets file. If the stored record
// already has the same secret, the stored hash stays.
func (i *importer) hashSecrets(ctx context.Context, b *batch) error {
	if !i.nice {
		i.nice = true
		lowerPriority()
	}
	var of []int // devices with a secret
	var ids []string
	for n, d := range b.devices {
		if d.Secret != "" {
			of, ids = append(of, n), append(ids, d.ID)
		}
	}
	var stored []contract.Credential
	exists := make([]bool, 0, len(of))
	for c, err := range i.publisher.GetDevices(ctx, ids) {
		if err != nil && !errors.Is(err, publish.ErrNotFound) && !errors.Is(err, publish.ErrCorrupt) {
			return err
		}
		stored, exists = append(stored, c), append(exists, !errors.Is(err, publish.ErrNotFound))
	}
	errs := make([]error, len(of))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for k, n := range of {
		group.Go(func() error {
			d := &b.devices[n]
			if !b.generated[n] && len(stored[k].Hashes) > 0 &&
				publish.Matches(stored[k].Hashes[0], d.Secret, i.key) {
				d.Hashes = stored[k].Hashes[:1]
				return nil
			}
			if exists[k] && !i.Replace {
				errs[k] = fmt.Errorf("device %q: %w with another secret", d.ID, publish.ErrExists)
				return nil
			}
			key := i.key
			if !contract.Generated(d.Secret) {
				key = nil
			}
			hash, err := publish.HashSecret(d.Secret, d.Cost, key)
			d.Hashes = []string{hash}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var secrets []keptSecret
	for k, n := range of {
		d := &b.devices[n]
		if errs[k] != nil {
			b.errs[b.lines[n]] = errs[k]
		} else if b.generated[n] {
			secrets = append(secrets, keptSecret{d.ID, d.Secret, d.Hashes[0]})
		}
		d.Secret = ""
	}
	b.dropFailed()
	if len(secrets) == 0 {
		return nil
	}
	return i.secrets.appendSecrets(secrets)
}

// dropFailed removes devices with errors.
func (b *batch) dropFailed() {
	var devices []publish.Device
	var at []int
	for n, line := range b.lines {
		if b.errs[line] == nil {
			devices, at = append(devices, b.devices[n]), append(at, line)
		}
	}
	b.devices, b.lines = devices, at
}

// writeBatch writes the devices of b. Errors of single devices go to b.errs; other errors are returned.
func (i *importer) writeBatch(ctx context.Context, b *batch) error {
	if i.DryRun {
		i.written += len(b.devices)
		return nil
	}
	var failed error
	for n, r := range i.publisher.AddDevices(ctx, b.devices, i.Replace) {
		switch {
		case r.Err == nil && r.Seq == 0:
			i.unchanged++
		case r.Err == nil:
			i.written++
		case isRecordError(r.Err):
			b.errs[b.lines[n]] = r.Err
		default:
			failed = r.Err
		}
	}
	return failed
}

// isRecordError reports whether err concerns a single record, so that writing can continue.
func isRecordError(err error) bool {
	return errors.Is(err, publish.ErrInvalid) || errors.Is(err, publish.ErrExists) || errors.Is(err, publish.ErrStale) ||
		strings.Contains(err.Error(), "WRONGTYPE")
}

// reportBatch prints the errors of b's lines, and the progress.
func (i *importer) reportBatch(b *batch) {
	for _, line := range slices.Sorted(maps.Keys(b.errs)) {
		i.failed++
		if i.failed > maxPrinted {
			continue
		}
		i.progress.clear()
		fmt.Fprintf(i.stderr, "%s:%d: %s\n", printable(i.File), line, printableLines(b.errs[line].Error()))
		if i.failed == maxPrinted {
			fmt.Fprintf(i.stderr, "%s: further errors are only counted\n", printable(i.File))
		}
	}
	i.progress.done, i.progress.bytes = i.written+i.unchanged+i.failed, b.bytes
	i.progress.show()
}

// progress is how far a command is, for a terminal.
type progress struct {
	console      *console
	what         string // is counted
	begin, shown time.Time
	size         int64 // of everything, 0 if unknown: bytes of the file, or records
	bytes        int64 // bytes of the file, or records, up to now
	done         int   // records
}

// newProgress returns a progress that begins now.
func newProgress(c *console, what string) progress {
	return progress{console: c, what: what, begin: time.Now()}
}

// show shows the progress a few times a second.
func (p *progress) show() {
	const interval = 200 * time.Millisecond
	if now := time.Now(); now.Sub(p.shown) >= interval {
		p.shown = now
		p.console.showProgress(p.formatLine(now))
	}
}

// clear removes the progress from the terminal.
func (p *progress) clear() { p.console.showProgress("") }

// formatLine returns the progress as a line of text.
func (p *progress) formatLine(now time.Time) string {
	elapsed := now.Sub(p.begin)
	text := fmt.Sprintf("%d %s, %.0f/s", p.done, p.what, float64(p.done)/max(elapsed.Seconds(), 0.001))
	if p.size > 0 && p.bytes > 0 {
		left := time.Duration(float64(elapsed) * float64(p.size-p.bytes) / float64(p.bytes))
		text += fmt.Sprintf(", %d %%, %s left", 100*p.bytes/p.size, max(left, 0).Round(time.Second))
	}
	return text
}
