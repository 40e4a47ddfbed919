package edgemem

import (
	"testing"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// TestSizes compares the calculated sizes of records with their real ones.
func TestSizes(t *testing.T) {
	object := func(variants ...wire.Variant) []byte {
		o := wire.Object{Key: "/a"}
		for _, v := range variants {
			o.AddVariant(v)
		}
		return wire.AppendObject(nil, 0, &o)
	}
	verdicts := func(n, devices int) int {
		return len(wire.AppendVerdicts(nil, 1, make([]wire.Verdict, n), make([]wire.Device, devices)))
	}
	empty := wire.BeginBatch(nil, 1, 1)
	for name, size := range map[string][2]int{
		"operation": {opSize, len(wire.AppendOp(empty, wire.RegionBodies, 0, func(dst []byte) []byte {
			return dst
		})) - len(empty)},
		"body":    {bodySize, len(wire.AppendBody(nil, 1, 1, make([]byte, 100))) - 100},
		"bucket":  {bucketSize, len(wire.AppendObjectsHeader(nil, 1, 1))},
		"object":  {objectSize, len(object()) - len("/a")},
		"variant": {variantSize, len(object(wire.Variant{})) - len(object())},
		"verdict": {verdictSize, verdicts(2, 0) - verdicts(1, 0)},
		"device":  {deviceSize, verdicts(1, 2) - verdicts(1, 1)},
	} {
		if size[0] != size[1] {
			t.Errorf("%s: reckoned %d bytes, took %d", name, size[0], size[1])
		}
	}
}
