package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

const bodyMaxBytes = 256 << 20

// decompress gives a batch's body, which states its size.
func decompress(codec uint16, body []byte, size int) ([]byte, error) {
	if size > bodyMaxBytes {
		return nil, errCorrupt
	}
	var reader io.Reader
	switch codec {
	case 0:
		return body, nil
	case 1:
		reader = lz4.NewReader(bytes.NewReader(body))
	case 2:
		decoder, err := zstd.NewReader(bytes.NewReader(body), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer decoder.Close()
		reader = decoder
	default:
		return nil, fmt.Errorf("codec %d of a record batch is not known", codec)
	}
	raw := make([]byte, size)
	if _, err := io.ReadFull(reader, raw); err != nil {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return raw, nil
}
