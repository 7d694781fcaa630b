package manifest_test
import ("testing";"github.com/klauspost/compress/zstd")
func TestZZ(t *testing.T){
 d,_:=zstd.NewReader(nil, zstd.WithDecoderMaxMemory(1<<20), zstd.WithDecoderMaxWindow(1<<20), zstd.WithDecoderLowmem(true))
 x,err:=d.DecodeAll(sizeless([]byte("hello")),nil)
 t.Log(string(x),err)
}
