// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/blang/semver/v4"
	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	resourceapi "k8s.io/api/resource/v1"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

func init() { register("cel", runCEL) }

// celQuestion asks for one expression over some devices. Env is "stored" (what the scheduler
// compiles with) or "new" (what the API server admits without the list gate). With Value the
// value is reported as it is, otherwise through DeviceMatches. With Derived it is the expression of
// a derived attribute, and the value is that attribute. With Repeat the evaluation is timed instead.
type celQuestion struct {
	Expr    string      `json:"expr"`
	Env     string      `json:"env"`
	Value   bool        `json:"value"`
	Derived bool        `json:"derived"`
	Repeat  int         `json:"repeat"`
	Devices []celDevice `json:"devices"`
}

type celDevice struct {
	Driver string             `json:"driver"`
	Device resourceapi.Device `json:"device"`
}

type celAnswer struct {
	CompileError string      `json:"compileError,omitempty"`
	Panic        string      `json:"panic,omitempty"`
	MaxCost      string      `json:"maxCost,omitempty"`
	Results      []celResult `json:"results,omitempty"`
	CompileNS    float64     `json:"compileNs,omitempty"`
	EvalNS       float64     `json:"evalNs,omitempty"`
}

type celResult struct {
	Value any    `json:"value,omitempty"`
	Error string `json:"error,omitempty"`
	Panic string `json:"panic,omitempty"`
	Cost  string `json:"cost,omitempty"`
}

func runCEL(in *bufio.Scanner, out io.Writer) error {
	for in.Scan() {
		var question celQuestion
		if err := json.Unmarshal(in.Bytes(), &question); err != nil {
			return fmt.Errorf("question %q: %w", in.Text(), err)
		}
		line, err := json.Marshal(answerCEL(question))
		if err != nil {
			return err
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

func compileCEL(question celQuestion) dracel.CompilationResult {
	envType := environment.StoredExpressions
	if question.Env == "new" {
		envType = environment.NewExpressions
	}
	compiler := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true})
	return compiler.CompileCELExpression(question.Expr, dracel.Options{EnvType: &envType, DerivedAttribute: question.Derived})
}

func answerCEL(question celQuestion) (answer celAnswer) {
	defer func() {
		if r := recover(); r != nil {
			answer = celAnswer{Panic: fmt.Sprint(r)}
		}
	}()
	compiled := compileCEL(question)
	if compiled.Error != nil {
		answer.CompileError = compiled.Error.Error()
		return answer
	}
	answer.MaxCost = strconv.FormatUint(compiled.MaxCost, 10)
	if question.Repeat > 0 {
		return timeCEL(question, compiled)
	}
	for _, device := range question.Devices {
		answer.Results = append(answer.Results, evaluateCEL(question, compiled, device))
	}
	return answer
}

func matchInput(device celDevice) dracel.Device {
	return dracel.Device{
		Driver:                   device.Driver,
		AllowMultipleAllocations: device.Device.AllowMultipleAllocations,
		Attributes:               device.Device.Attributes,
		Capacity:                 device.Device.Capacity,
	}
}

func evaluateCEL(question celQuestion, compiled dracel.CompilationResult, device celDevice) (result celResult) {
	defer func() {
		if r := recover(); r != nil {
			result = celResult{Panic: fmt.Sprint(r)}
		}
	}()
	var details *celgo.EvalDetails
	var err error
	var value any
	if question.Derived {
		value, details, err = compiled.EvaluateDerivedAttribute(context.Background(), matchInput(device))
	} else if question.Value {
		var val ref.Val
		val, details, err = compiled.Program.ContextEval(context.Background(), activation(compiled, device))
		if err == nil {
			value = describe(val)
		}
	} else {
		value, details, err = compiled.DeviceMatches(context.Background(), matchInput(device))
	}
	if details != nil && details.ActualCost() != nil {
		result.Cost = strconv.FormatUint(*details.ActualCost(), 10)
	}
	if err != nil {
		result.Error = err.Error()
	} else {
		result.Value = value
	}
	return result
}

func timeCEL(question celQuestion, compiled dracel.CompilationResult) celAnswer {
	answer := celAnswer{}
	start := time.Now()
	const compilations = 50
	for range compilations {
		compileCEL(question)
	}
	answer.CompileNS = float64(time.Since(start).Nanoseconds()) / compilations
	inputs := make([]dracel.Device, len(question.Devices))
	for i, device := range question.Devices {
		inputs[i] = matchInput(device)
	}
	start = time.Now()
	for i := range question.Repeat {
		if _, _, err := compiled.DeviceMatches(context.Background(), inputs[i%len(inputs)]); err != nil {
			answer.Results = []celResult{{Error: err.Error()}}
		}
	}
	answer.EvalNS = float64(time.Since(start).Nanoseconds()) / float64(question.Repeat)
	return answer
}

// anyDomain answers a lookup of an absent domain with an empty map, as DRA does.
type anyDomain struct {
	traits.Mapper
	empty ref.Val
}

func (m anyDomain) Find(key ref.Val) (ref.Val, bool) {
	if value, found := m.Mapper.Find(key); found {
		return value, true
	}
	return m.empty, true
}

// activation lays a device out for value mode, where DeviceMatches cannot report the result.
func activation(compiled dracel.CompilationResult, device celDevice) map[string]any {
	adapter := compiled.Environment.CELTypeAdapter()
	attributes, capacities := map[string]any{}, map[string]any{}
	for name, attribute := range device.Device.Attributes {
		domain, id := splitName(string(name), device.Driver)
		if attributes[domain] == nil {
			attributes[domain] = map[string]any{}
		}
		attributes[domain].(map[string]any)[id] = attributeValue(attribute)
	}
	for name, capacity := range device.Device.Capacity {
		domain, id := splitName(string(name), device.Driver)
		if capacities[domain] == nil {
			capacities[domain] = map[string]apiservercel.Quantity{}
		}
		quantity := capacity.Value
		capacities[domain].(map[string]apiservercel.Quantity)[id] = apiservercel.Quantity{Quantity: &quantity}
	}
	empty := adapter.NativeToValue(map[string]any{})
	multiple := device.Device.AllowMultipleAllocations
	return map[string]any{"device": map[string]any{
		"driver":                   device.Driver,
		"allowMultipleAllocations": multiple != nil && *multiple,
		"attributes":               anyDomain{types.NewStringInterfaceMap(adapter, attributes), empty},
		"capacity":                 anyDomain{types.NewStringInterfaceMap(adapter, capacities), empty},
	}}
}

func splitName(name, driver string) (string, string) {
	if domain, id, found := strings.Cut(name, "/"); found {
		return domain, id
	}
	return driver, name
}

func attributeValue(attribute resourceapi.DeviceAttribute) any {
	switch {
	case attribute.IntValue != nil:
		return *attribute.IntValue
	case attribute.BoolValue != nil:
		return *attribute.BoolValue
	case attribute.StringValue != nil:
		return *attribute.StringValue
	case attribute.VersionValue != nil:
		return apiservercel.Semver{Version: semver.MustParse(*attribute.VersionValue)}
	case attribute.IntValues != nil:
		return attribute.IntValues
	case attribute.BoolValues != nil:
		return attribute.BoolValues
	case attribute.StringValues != nil:
		return attribute.StringValues
	default:
		versions := make([]apiservercel.Semver, len(attribute.VersionValues))
		for i, version := range attribute.VersionValues {
			versions[i] = apiservercel.Semver{Version: semver.MustParse(version)}
		}
		return versions
	}
}

// describe writes a CEL value as [type, content] so that no type is lost in JSON.
func describe(val ref.Val) any {
	switch v := val.(type) {
	case types.Bool:
		return []any{"bool", bool(v)}
	case types.Int:
		return []any{"int", strconv.FormatInt(int64(v), 10)}
	case types.Uint:
		return []any{"uint", strconv.FormatUint(uint64(v), 10)}
	case types.Double:
		return []any{"double", strconv.FormatUint(math.Float64bits(float64(v)), 16)}
	case types.String:
		return []any{"string", string(v)}
	case types.Bytes:
		return []any{"bytes", bytes.Clone([]byte(v))} // upstream appends in place to constants
	case types.Null:
		return []any{"null", nil}
	case types.Duration:
		return []any{"duration", strconv.FormatInt(int64(v.Duration), 10)}
	case types.Timestamp:
		return []any{"timestamp", strconv.FormatInt(v.Unix(), 10) + "." + strconv.Itoa(v.Nanosecond())}
	case *types.Optional:
		if !v.HasValue() {
			return []any{"optional", nil}
		}
		return []any{"optional", describe(v.GetValue())}
	case traits.Lister:
		items := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			items = append(items, describe(it.Next()))
		}
		return []any{"list", items}
	case traits.Mapper:
		items := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			items = append(items, []any{describe(key), describe(v.Get(key))})
		}
		return []any{"map", items}
	case apiservercel.Quantity:
		return []any{"quantity", v.AsDec().String()}
	case *apiservercel.Quantity:
		return []any{"quantity", v.AsDec().String()}
	case apiservercel.Semver:
		return []any{"semver", v.String()}
	case *types.Type:
		return []any{"type", v.TypeName()}
	case fmt.Stringer:
		return []any{val.Type().TypeName(), v.String()}
	default:
		return []any{val.Type().TypeName(), fmt.Sprint(val.Value())}
	}
}
