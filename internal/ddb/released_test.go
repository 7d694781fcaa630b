package ddb_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/ddb"
)

var (
	writeRows = flag.String("write-rows", "", "file for the rows that this code writes")
	readRows  = flag.String("read-rows", "", "file of rows that another commit wrote")
	newShape  = flag.Bool("new-shape", false, "keep the rows that this code writes in testdata/rows, as the next shape")
)

// released is a row as it was written, and what its writer read in it.
type released struct {
	Item   json.RawMessage `json:"item"` // in DynamoDB's JSON
	Record json.RawMessage `json:"record"`
}

// rowsWritten is every kind of row as this code writes it.
func rowsWritten(t *testing.T) map[string]released {
	t.Helper()
	all := map[string]released{}
	for name, shape := range ddb.Shapes() {
		it, err := shape.Write()
		if err != nil {
			t.Fatalf("write %s: %v", name, err)
		}
		record, err := shape.Read(it)
		if err != nil {
			t.Fatalf("read %s: %v", name, err)
		}
		var r released
		if r.Item, err = attributevalue.MarshalMapJSON(it); err == nil {
			r.Record, err = json.Marshal(record)
		}
		if err != nil {
			t.Fatal(err)
		}
		all[name] = r
	}
	return all
}

func decoded(t *testing.T, r released) map[string]types.AttributeValue {
	t.Helper()
	it, err := attributevalue.UnmarshalMapJSON(r.Item)
	if err != nil {
		t.Fatal(err)
	}
	return it
}

func loadRows(t *testing.T, file string) map[string]released {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]released{}
	if err := json.Unmarshal(data, &all); err != nil || len(all) == 0 {
		t.Fatalf("%s: %d rows, %v", file, len(all), err)
	}
	return all
}

func keepRows(t *testing.T, file string, rows map[string]released) {
	t.Helper()
	data, err := json.MarshalIndent(rows, "", " ")
	if err == nil {
		err = os.WriteFile(file, append(data, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// checkRead reads rows that somebody else wrote: this code must find what they did.
func checkRead(t *testing.T, rows map[string]released) {
	t.Helper()
	shapes := ddb.Shapes()
	for name, r := range rows {
		shape, ok := shapes[name]
		if !ok {
			t.Errorf("%s: no such row any more", name)
			continue
		}
		record, err := shape.Read(decoded(t, r))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		var want, got any
		if err := cmp.Or(json.Unmarshal(r.Record, &want), json.Unmarshal(text, &got)); err != nil {
			t.Fatal(err)
		}
		for _, d := range missing(name, want, got) {
			t.Error(d)
		}
	}
}

// missing says where got lacks what want has; it may have more.
func missing(at string, want, got any) []string {
	w, isMap := want.(map[string]any)
	if !isMap {
		if !reflect.DeepEqual(want, got) {
			return []string{fmt.Sprintf("%s: read %v, its writer read %v", at, got, want)}
		}
		return nil
	}
	g, _ := got.(map[string]any)
	var all []string
	for _, name := range slices.Sorted(maps.Keys(w)) {
		all = append(all, missing(at+"."+name, w[name], g[name])...)
	}
	return all
}

// kept are the files of testdata/rows, oldest first.
func kept(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "rows", "[0-9][0-9][0-9].json"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	return files
}

// TestRowsOfEveryReleaseAreRead: each file of testdata/rows is what some release wrote; a
// file is added and never changed.
func TestRowsOfEveryReleaseAreRead(t *testing.T) {
	files := kept(t)
	if len(files) == 0 && !*newShape {
		t.Fatal("no file in testdata/rows")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { checkRead(t, loadRows(t, file)) })
	}
}

// TestRowsAreWrittenAsTheNewestShapeSays: who changes what is written adds a shape, so that
// the one before stays readable.
func TestRowsAreWrittenAsTheNewestShapeSays(t *testing.T) {
	files, rows := kept(t), rowsWritten(t)
	if *newShape {
		keepRows(t, filepath.Join("testdata", "rows", fmt.Sprintf("%03d.json", len(files)+1)), rows)
		return
	}
	newest := loadRows(t, files[len(files)-1])
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		before, ok := newest[name]
		if !ok || !reflect.DeepEqual(decoded(t, before), decoded(t, rows[name])) {
			t.Errorf("%s is not written as in %s: go test ./internal/ddb -run Written -new-shape adds the next\nwritten %s\nthere   %s",
				name, files[len(files)-1], rows[name].Item, compact(before.Item))
		}
	}
}

func compact(text json.RawMessage) string {
	var b bytes.Buffer
	_ = json.Compact(&b, text) // what is none is shown as nothing
	return b.String()
}

// TestRowsOfAnotherCommit is for scripts/upgrade: one commit writes a file, another reads it.
func TestRowsOfAnotherCommit(t *testing.T) {
	switch {
	case *writeRows != "":
		keepRows(t, *writeRows, rowsWritten(t))
	case *readRows != "":
		checkRead(t, loadRows(t, *readRows))
	}
}

// TestEveryMemberOfARecordIsInItsRow: a record that has a value everywhere loses none of
// them by being stored.
func TestEveryMemberOfARecordIsInItsRow(t *testing.T) {
	for name, r := range rowsWritten(t) {
		var record map[string]any
		if err := json.Unmarshal(r.Record, &record); err != nil {
			t.Fatal(err)
		}
		if len(record) == 0 || len(decoded(t, r)) < 5 {
			t.Errorf("%s: read %s of %s", name, r.Record, r.Item)
		}
	}
}

// TestARowOfAnotherVersionIsOneClearError, and touches nothing: the version before is read,
// an older one and a newer one are not.
func TestARowOfAnotherVersionIsOneClearError(t *testing.T) {
	for name, c := range map[string]struct {
		v    int
		says string
	}{
		"the version before": {4, ""}, "the own version": {5, ""},
		"a newer release's": {6, "newer release"}, "one before the one before": {3, "pass through the releases between"}, "none": {0, "reads from 4 to 5"},
	} {
		err := ddb.CheckVersion(c.v, 4, 5)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	built, err := expression.NewBuilder().WithCondition(ddb.OfVersions(4, 5)).Build()
	if err != nil || *built.Condition() != "#0 BETWEEN :0 AND :1" || built.Names()["#0"] != "v" {
		t.Errorf("condition %v, %v", built.Condition(), err)
	}
	for name, shape := range ddb.Shapes() {
		it, err := shape.Write()
		if err != nil {
			t.Fatal(err)
		}
		it["v"] = &types.AttributeValueMemberN{Value: fmt.Sprint(ddb.Version + 1)}
		if record, err := shape.Read(it); err == nil || !strings.Contains(err.Error(), "newer release") {
			t.Errorf("%s of a newer version is read as %+v, %v", name, record, err)
		}
	}
}
