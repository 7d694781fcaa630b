package manifest

import (
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf8"
)

// rootMagic begins a root; the version byte follows.
const rootMagic = "sk-root"

// EncodeRoot writes a root. Packs must be in the order of ComparePacks.
func EncodeRoot(r Root) ([]byte, error) {
	if err := validateRoot(r); err != nil {
		return nil, err
	}
	owners := ownersOf(r)
	b := append([]byte(rootMagic), byte(r.Version))
	b = appendText(b, r.ID)
	b = appendText(b, r.Parent)
	b = appendSigned(b, r.CreatedAt)
	b = appendTexts(b, owners)
	b = appendRefs(b, r.Layers, owners)
	b = appendRefs(b, r.Packs, owners)
	b = appendPolicy(b, r.Policy)
	for _, n := range r.Counts.fields() {
		b = appendInt(b, *n)
	}
	b = binary.AppendUvarint(b, uint64(len(r.Skipped)))
	for _, s := range r.Skipped {
		b = appendText(appendText(b, s.Path), s.Reason)
	}
	b = appendInt(b, r.SkippedMore)
	b = appendText(b, r.Git)
	b = appendText(b, string(r.Redaction.Salt))
	b = appendInt(b, r.Redaction.Iterations)
	b = appendText(b, string(r.Redaction.Digest))
	if len(b) > MaxRoot {
		return nil, refuse(TooMuch, "", "root of %d bytes, want at most %d", len(b), MaxRoot)
	}
	return b, nil
}

// DecodeRoot reads a root. What it accepts EncodeRoot writes again byte for byte.
// It refuses with *VersionError, *MalformedError or *RefusedError.
func DecodeRoot(data []byte) (Root, error) {
	version, err := checkMagic("root", rootMagic, data)
	if err != nil {
		return Root{}, err
	}
	if len(data) > MaxRoot {
		return Root{}, refuse(TooMuch, "", "root of %d bytes, want at most %d", len(data), MaxRoot)
	}
	c := &cursor{data: data, at: len(rootMagic) + 1}
	r := readRoot(c)
	r.Version = version
	if c.why == "" && c.left() > 0 {
		c.fail("something follows the end")
	}
	if c.why != "" {
		return Root{}, &MalformedError{Object: "root", At: int64(c.at), Why: c.why}
	}
	if err := validateRoot(r); err != nil {
		return Root{}, err
	}
	return r, nil
}

// checkMagic answers the version that an object's first bytes state.
func checkMagic(object, magic string, data []byte) (int, error) {
	if len(data) <= len(magic) || string(data[:len(magic)]) != magic {
		return 0, &MalformedError{Object: object, Why: "it does not begin with " + magic + " and a version"}
	}
	version := int(data[len(magic)])
	if version != Version {
		return 0, &VersionError{Object: object, Version: version}
	}
	return version, nil
}

func readRoot(c *cursor) Root {
	var r Root
	r.ID = c.text(MaxID)
	r.Parent = c.text(MaxID)
	r.CreatedAt = c.signed()
	owners := c.texts(MaxPacks, MaxID)
	used := make([]bool, len(owners)+1)
	r.Layers = readRefs(c, MaxLayers, owners, used)
	r.Packs = readRefs(c, MaxPacks, owners, used)
	for i := range owners {
		if !used[i+1] || i > 0 && owners[i-1] >= owners[i] || owners[i] == "" {
			c.fail("the owners are not a sorted list of those that are used")
		}
	}
	r.Policy = readPolicy(c)
	for _, n := range r.Counts.fields() {
		*n = c.number()
	}
	for range c.count(MaxSkipped, 2) {
		r.Skipped = append(r.Skipped, Skipped{Path: c.text(MaxText), Reason: c.text(MaxText)})
	}
	r.SkippedMore = c.number()
	r.Git = c.text(MaxText)
	r.Redaction.Salt = c.bytes(MaxName)
	r.Redaction.Iterations = c.number()
	r.Redaction.Digest = c.bytes(len(Digest{}))
	return r
}

// ownersOf lists the owners that a root names, sorted, each once.
func ownersOf(r Root) []string {
	var owners []string
	seen := map[string]bool{"": true}
	for _, refs := range [][]PackRef{r.Layers, r.Packs} {
		for _, p := range refs {
			if !seen[p.Owner] {
				seen[p.Owner] = true
				owners = append(owners, p.Owner)
			}
		}
	}
	slices.Sort(owners)
	return owners
}

func appendRefs(b []byte, refs []PackRef, owners []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(refs)))
	for _, p := range refs {
		owner := 0
		if p.Owner != "" {
			i, _ := slices.BinarySearch(owners, p.Owner)
			owner = i + 1
		}
		b = appendInt(b, p.Fence)
		b = append(b, p.SHA256[:]...)
		b = appendInt(b, p.Size)
		b = binary.AppendUvarint(b, uint64(owner))
	}
	return b
}

func readRefs(c *cursor, most int, owners []string, used []bool) []PackRef {
	n := c.count(most, 35)
	if n == 0 {
		return nil
	}
	refs := make([]PackRef, n)
	for i := range refs {
		refs[i] = PackRef{Fence: c.number(), SHA256: c.digest(), Size: c.number()}
		owner := c.count(len(owners), 0)
		used[owner] = true
		if owner > 0 {
			refs[i].Owner = owners[owner-1]
		}
	}
	return refs
}

const (
	policyDefaults = 1 << iota
	policyXattrs
	policyStrict
	policyFlags = policyDefaults | policyXattrs | policyStrict
)

const (
	ruleAll = 1 << iota
	ruleDirs
	ruleFlags = ruleAll | ruleDirs
)

func flag(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}

func appendPolicy(b []byte, p Policy) []byte {
	b = append(b, flag(p.Defaults, policyDefaults)|flag(p.Xattrs, policyXattrs)|flag(p.Strict, policyStrict))
	b = appendText(b, p.Git)
	b = appendText(b, p.WorkspaceHash)
	b = appendTexts(b, p.RedactForms)
	b = appendRules(b, p.Include)
	return appendRules(b, p.Exclude)
}

func readPolicy(c *cursor) Policy {
	flags := c.byte()
	if flags&^policyFlags != 0 {
		c.fail("the policy has unknown flags")
	}
	return Policy{
		Defaults: flags&policyDefaults != 0, Xattrs: flags&policyXattrs != 0, Strict: flags&policyStrict != 0,
		Git: c.text(MaxText), WorkspaceHash: c.text(MaxText), RedactForms: c.texts(MaxText, MaxText),
		Include: readRules(c), Exclude: readRules(c),
	}
}

func appendRules(b []byte, rules []Rule) []byte {
	b = binary.AppendUvarint(b, uint64(len(rules)))
	for _, r := range rules {
		b = append(b, flag(r.All, ruleAll)|flag(r.Dirs, ruleDirs))
		b = binary.AppendUvarint(b, uint64(len(r.Kinds)))
		for _, k := range r.Kinds {
			b = append(b, byte(k))
		}
		for _, list := range [][]string{r.Exact, r.Prefixes, r.Suffixes, r.Segments, r.Globs} {
			b = appendTexts(b, list)
		}
	}
	return b
}

func readRules(c *cursor) []Rule {
	var rules []Rule
	for range c.count(MaxText, 7) {
		flags := c.byte()
		if flags&^ruleFlags != 0 {
			c.fail("a rule has unknown flags")
		}
		r := Rule{All: flags&ruleAll != 0, Dirs: flags&ruleDirs != 0}
		for range c.count(len(kindNames), 1) {
			r.Kinds = append(r.Kinds, Kind(c.byte()))
		}
		for _, list := range []*[]string{&r.Exact, &r.Prefixes, &r.Suffixes, &r.Segments, &r.Globs} {
			*list = c.texts(MaxText, MaxText)
		}
		rules = append(rules, r)
	}
	return rules
}

func appendTexts(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = appendText(b, s)
	}
	return b
}

func (c *cursor) texts(most, length int) []string {
	var list []string
	for range c.count(most, 1) {
		list = append(list, c.text(length))
	}
	return list
}

func (c *cursor) bytes(most int) []byte {
	if n := c.count(most, 1); n > 0 {
		return slices.Clone(c.take(n))
	}
	return nil
}

// validateRoot refuses a root by what it says itself.
func validateRoot(r Root) error {
	if r.Version != Version {
		return &VersionError{Object: "root", Version: r.Version}
	}
	for _, id := range []string{r.ID, r.Parent} {
		if len(id) > MaxID || !utf8.ValidString(id) {
			return refuse(BadRoot, "", "id %q, want at most %d bytes of UTF-8", id, MaxID)
		}
	}
	if r.ID == "" || r.ID == r.Parent {
		return refuse(BadRoot, "", "id %q with parent %q, want an id of its own", r.ID, r.Parent)
	}
	if r.SkippedMore < 0 {
		return refuse(BadRoot, "", "%d more skipped entries, want none or some", r.SkippedMore)
	}
	if err := validateRefs(r); err != nil {
		return err
	}
	for _, n := range r.Counts.fields() {
		if *n < 0 || *n > MaxSize {
			return refuse(BadCounts, "", "count %d, want 0 to %d", *n, int64(MaxSize))
		}
	}
	if err := validatePolicy(r.Policy); err != nil {
		return err
	}
	return validateWords(r)
}

func validateRefs(r Root) error {
	if len(r.Layers) > MaxLayers || len(r.Packs) > MaxPacks {
		return refuse(TooMuch, "", "%d layers and %d packs, want at most %d and %d", len(r.Layers), len(r.Packs), MaxLayers, MaxPacks)
	}
	for i, layer := range r.Layers {
		if err := validateRef("layer", layer, MaxLayer); err != nil {
			return err
		}
		if slices.ContainsFunc(r.Layers[:i], func(p PackRef) bool { return p.ID() == layer.ID() }) {
			return refuse(BadPack, "", "layer %s is listed twice", layer.Name())
		}
	}
	for i, pack := range r.Packs {
		if err := validateRef("pack", pack, MaxPack); err != nil {
			return err
		}
		if i > 0 && ComparePacks(r.Packs[i-1], pack) >= 0 {
			return refuse(BadPack, "", "pack %s is not after the one before it", pack.Name())
		}
	}
	return nil
}

func validateRef(what string, p PackRef, most int64) error {
	if p.Fence < 0 || p.Size < 1 || p.Size > most {
		return refuse(BadPack, "", "%s of %d bytes under fence %d, want 1 to %d bytes", what, p.Size, p.Fence, most)
	}
	if len(p.Owner) > MaxID || !utf8.ValidString(p.Owner) {
		return refuse(BadPack, "", "owner of %d bytes, want at most %d of UTF-8", len(p.Owner), MaxID)
	}
	return nil
}

// validatePolicy copies no list: a policy may have many rules of many words.
func validatePolicy(p Policy) error {
	if err := validateTexts([]string{p.Git, p.WorkspaceHash}, p.RedactForms); err != nil {
		return err
	}
	for _, rules := range [][]Rule{p.Include, p.Exclude} {
		for _, rule := range rules {
			for i, k := range rule.Kinds {
				if k < File || k > Hardlink || i > 0 && rule.Kinds[i-1] >= k {
					return refuse(BadRoot, "", "rule of kinds %d, want some of 1 to 4, in order", rule.Kinds)
				}
			}
			if err := validateTexts(rule.Exact, rule.Prefixes, rule.Suffixes, rule.Segments, rule.Globs); err != nil {
				return err
			}
		}
	}
	return nil
}

func validateTexts(lists ...[]string) error {
	for _, words := range lists {
		for _, word := range words {
			if len(word) > MaxText {
				return refuse(TooMuch, "", "text of %d bytes in the policy, want at most %d", len(word), MaxText)
			}
		}
	}
	return nil
}

func validateWords(r Root) error {
	if len(r.Skipped) > MaxSkipped {
		return refuse(TooMuch, "", "%d skipped entries, want at most %d and a count of the others", len(r.Skipped), MaxSkipped)
	}
	for _, s := range r.Skipped {
		if len(s.Path) > MaxText || len(s.Reason) > MaxText {
			return refuse(TooMuch, "", "skipped %s: more than %d bytes", strings.ToValidUTF8(s.Path[:min(len(s.Path), MaxName)], "?"), MaxText)
		}
	}
	if len(r.Git) > MaxText || len(r.Redaction.Salt) > MaxName {
		return refuse(TooMuch, "", "%d bytes about git and %d of salt, want at most %d and %d", len(r.Git), len(r.Redaction.Salt), MaxText, MaxName)
	}
	digest := len(r.Redaction.Digest)
	if r.Redaction.Iterations < 0 || digest != 0 && digest != len(Digest{}) {
		return refuse(BadRoot, "", "redaction digest of %d bytes after %d iterations, want 32 bytes or none", digest, r.Redaction.Iterations)
	}
	return nil
}

// fields are the counts in the order of the format.
func (c *Counts) fields() []*int64 {
	return []*int64{&c.Files, &c.Dirs, &c.Symlinks, &c.Hardlinks, &c.OutwardLinks, &c.Bytes, &c.StoredBytes, &c.RedactedFiles}
}
