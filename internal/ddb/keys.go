package ddb

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// The sort keys, and the prefixes of keys that have them.
const (
	skRun     = "run"
	skSegment = "seg#"
	skSandbox = "sandbox"
	skRow     = "row"
	skControl = "control"

	pkSandbox = names.SandboxKeys
	pkRow     = "task#"
	pkControl = "control"
	pkAudit   = "audit#" // and the day, in UTC
)

func runPK(k core.RunKey) string {
	return core.KeyToken(string(k.Tenant)) + "#" + core.KeyToken(string(k.Run))
}

func threadKey(tenant core.TenantID, thread core.ThreadID) string {
	return core.KeyToken(string(tenant)) + "#" + core.KeyToken(string(thread))
}

func sandboxPK(key core.SandboxKey) string { return pkSandbox + core.KeyToken(string(key)) }

func rowPK(id core.InstanceID) string { return pkRow + core.KeyToken(string(id)) }

func auditPK(day time.Time) string { return pkAudit + day.UTC().Format(time.DateOnly) }

// segmentSK sorts as positions do.
func segmentSK(from int64) string { return fmt.Sprintf("%s%016d", skSegment, from) }

// key is an item's primary key.
func key(pk, sk string) item {
	return item{
		names.PK.Name: &types.AttributeValueMemberS{Value: pk},
		names.SK.Name: &types.AttributeValueMemberS{Value: sk},
	}
}

// shard spreads the items of an index over its partitions.
func shard(pk string) int { return core.ShardOfKey(pk) }

// parseRunPK is the inverse of runPK.
func parseRunPK(pk string) (core.RunKey, error) {
	tenant, run, ok := strings.Cut(pk, "#")
	if !ok {
		return core.RunKey{}, fmt.Errorf("parse key %q: want <tenant>#<run>", pk)
	}
	t, err := parseToken(tenant)
	if err != nil {
		return core.RunKey{}, err
	}
	r, err := parseToken(run)
	if err != nil {
		return core.RunKey{}, err
	}
	return core.RunKey{Tenant: core.TenantID(t), Run: core.RunID(r)}, nil
}

// parseToken is the inverse of [core.KeyToken]; it takes nothing that KeyToken does
// not write.
func parseToken(token string) (string, error) {
	var b strings.Builder
	for rest := token; rest != ""; {
		literal, escaped, found := strings.Cut(rest, "_")
		b.WriteString(literal)
		if !found {
			break
		}
		if len(escaped) < 2 {
			return "", fmt.Errorf("parse key token %q: want two hex digits after _", token)
		}
		raw, err := hex.DecodeString(escaped[:2])
		if err != nil {
			return "", fmt.Errorf("parse key token %q: %w", token, err)
		}
		b.Write(raw)
		rest = escaped[2:]
	}
	if id := b.String(); core.KeyToken(id) == token {
		return id, nil
	}
	return "", fmt.Errorf("parse key token %q: not in canonical form", token)
}
