package follow

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// Proof is a server's answer to the question whether the server has a write, and so all earlier writes. While a name
// moves, or Redis fails over, a client may still be connected to a server that lacks writes, or has others.
type Proof struct {
	write  contract.Link
	number *redis.StringCmd
	link   *redis.SliceCmd // nil: only numbers are compared
}

// AskProof adds the question to a pipeline: if [Proof.Err] returns nil, the results of the pipeline's later commands
// are at least as new as the write. If the write's digest is unknown, "", a later write of another history counts, too.
func AskProof(ctx context.Context, pipe redis.Pipeliner, keys contract.Keys, write contract.Link) Proof {
	p := Proof{write: write, number: pipe.Get(ctx, keys.SeqKey())}
	if write.Digest != "" {
		p.link = pipe.HMGet(ctx, keys.ChainKey(), contract.ChainField(write.Seq))
	}
	return p
}

// Err returns an error if the server has not answered, or lacks the write.
func (p *Proof) Err() error {
	seq, err := p.number.Uint64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	if seq < p.write.Seq {
		return fmt.Errorf("the server is at write %d, behind write %d, which was applied before", seq, p.write.Seq)
	}
	if p.link == nil {
		return nil
	}
	values, err := p.link.Result()
	if err != nil && !redisurl.Withheld(err) {
		return err
	}
	if len(values) == 0 {
		return nil
	}
	link := parseLink(values[0])
	if link.Seq == p.write.Seq && link.Digest != p.write.Digest {
		return fmt.Errorf("the server has another write %d than was applied before", link.Seq)
	}
	return nil
}
