// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

func init() { register("metadata", runMetadata) }

// metadataQuestion is the text of a file of device metadata, as a container finds it.
type metadataQuestion struct {
	File string `json:"file"`
}

// metadataAnswer is what Kubernetes' own reader makes of it.
type metadataAnswer struct {
	Error   string                   `json:"error,omitempty"`
	Invalid string                   `json:"invalid,omitempty"`
	Version string                   `json:"version,omitempty"`
	Object  *metadata.DeviceMetadata `json:"object,omitempty"`
}

func runMetadata(in *bufio.Scanner, out io.Writer) error {
	for in.Scan() {
		var question metadataQuestion
		if err := json.Unmarshal(in.Bytes(), &question); err != nil {
			return err
		}
		line, err := json.Marshal(readMetadata(question.File))
		if err != nil {
			return err
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

func readMetadata(file string) metadataAnswer {
	var found metadata.DeviceMetadata
	var invalid error
	var kind schema.GroupVersionKind
	err := devicemetadata.DecodeMetadataFromStream(
		json.NewDecoder(strings.NewReader(file)), &found,
		devicemetadata.DecodeMetadataWithValidationResult(&invalid),
		devicemetadata.DecodeMetadataStoreGVKResult(&kind),
	)
	answer := metadataAnswer{Version: kind.Version}
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	if invalid != nil {
		answer.Invalid = invalid.Error()
	}
	answer.Object = &found
	return answer
}
