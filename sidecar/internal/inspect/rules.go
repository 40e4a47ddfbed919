package inspect

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// maxDump bounds the edge's configuration, bytes. While the dump is parsed, the tree takes a multiple of the dump's
// size.
const maxDump = 8 << 20

// readRules returns the rules of each listener that the edge shows: Envoy does, nginx doesn't.
func (i *Inspector) readRules(ctx context.Context) ([]envoyrules.Rules, error) {
	i.reading.Lock() // one tree at a time
	defer i.reading.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sampleEvery)
	defer cancel()
	dump, err := fetchBody(ctx, "http://"+i.EdgeAdmin+"/config_dump", maxDump)
	if err != nil {
		return nil, err
	}
	return envoyrules.RulesOf("", dump)
}

// fetchBody returns the body at url, at most limit bytes.
func fetchBody(ctx context.Context, url string, limit int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, answer.Status)
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, answer.Body, limit))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return body, nil
}
