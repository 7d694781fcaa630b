# Runs each fuzzer of the module for FUZZTIME, one after another.
set -eu
for package in $(go list ./...); do
	for fuzzer in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "$package $fuzzer"
		go test -run '^$' -fuzz "^$fuzzer\$" -fuzztime "$FUZZTIME" "$package"
	done
done
