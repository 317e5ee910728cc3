// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

func init() { register("allocate", runAllocate) }

// allocateQuestion is a small cluster and what is asked of it. Claims with an allocation are
// state; those named in Ask are allocated together, on each node of Nodes in turn. Without
// Default all allocator features are on, with it those that 1.37 enables by default. With Repeat
// the whole round over all nodes is timed that often instead.
type allocateQuestion struct {
	Nodes     []*v1.Node                   `json:"nodes"`
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Classes   []*resourceapi.DeviceClass   `json:"classes"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`
	Ask       []string                     `json:"ask"`
	Default   bool                         `json:"default"`
	Repeat    int                          `json:"repeat"`
	TimeoutMS int                          `json:"timeoutMs"`
}

type allocateAnswer struct {
	Nodes   map[string]nodeAnswer `json:"nodes,omitempty"`
	Panic   string                `json:"panic,omitempty"`
	RoundNS []int64               `json:"roundNs,omitempty"` // processor time
	Fitting int                   `json:"fitting"`
}

// nodeAnswer has Allocations, or an error, or neither if the claims do not fit.
type nodeAnswer struct {
	Allocations []resourceapi.AllocationResult `json:"allocations,omitempty"`
	Fits        bool                           `json:"fits"`
	Error       string                         `json:"error,omitempty"`
	NodeError   bool                           `json:"nodeError,omitempty"`
	Timeout     bool                           `json:"timeout,omitempty"`
	Panic       string                         `json:"panic,omitempty"`
}

func runAllocate(in *bufio.Scanner, out io.Writer) error {
	for in.Scan() {
		var question allocateQuestion
		if err := json.Unmarshal(in.Bytes(), &question); err != nil {
			return fmt.Errorf("question: %w", err)
		}
		line, err := json.Marshal(answerAllocate(question))
		if err != nil {
			return err
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

type classLister map[string]*resourceapi.DeviceClass

func (l classLister) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (l classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, found := l[name]; found {
		return class, nil
	}
	return nil, fmt.Errorf("class %q not found", name)
}

func (q allocateQuestion) features() structured.Features {
	return structured.Features{
		AdminAccess:             true,
		CompatibilityGroups:     !q.Default,
		ConsumableCapacity:      true,
		DerivedAttributes:       !q.Default,
		DeviceBindingAndStatus:  true,
		DeviceTaints:            true,
		FractionalCapacityRange: true,
		ListTypeAttributes:      !q.Default,
		OptionalNodeOperations:  !q.Default,
		PartitionableDevices:    true,
		PrioritizedList:         true,
	}
}

// allocatedState reads allocated claims as the scheduler's cache does.
func (q allocateQuestion) allocatedState() structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range q.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	return state
}

func (q allocateQuestion) asked() []*resourceapi.ResourceClaim {
	var asked []*resourceapi.ResourceClaim
	for _, name := range q.Ask {
		for _, claim := range q.Claims {
			if claim.Name == name {
				asked = append(asked, claim)
			}
		}
	}
	return asked
}

func answerAllocate(q allocateQuestion) (answer allocateAnswer) {
	defer func() {
		if r := recover(); r != nil {
			answer = allocateAnswer{Panic: fmt.Sprint(r)}
		}
	}()
	classes := classLister{}
	for _, class := range q.Classes {
		classes[class.Name] = class
	}
	cache := dracel.NewCache(10, dracel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: !q.Default})
	asked := q.asked()
	if q.Repeat > 0 {
		return timeAllocate(q, classes, cache, asked)
	}
	allocator, err := structured.NewAllocator(context.Background(), q.features(), q.allocatedState(), classes, q.Slices, cache)
	if err != nil {
		return allocateAnswer{Panic: err.Error()}
	}
	answer.Nodes = map[string]nodeAnswer{}
	for _, node := range q.Nodes {
		one := askNode(q, allocator, node, asked)
		answer.Nodes[node.Name] = one
		if one.Fits {
			answer.Fitting++
		}
	}
	return answer
}

func askNode(q allocateQuestion, allocator structured.Allocator, node *v1.Node, asked []*resourceapi.ResourceClaim) (answer nodeAnswer) {
	defer func() {
		if r := recover(); r != nil {
			answer = nodeAnswer{Panic: fmt.Sprint(r)}
		}
	}()
	ctx := context.Background()
	if q.TimeoutMS > 0 {
		limited, cancel := context.WithTimeout(ctx, time.Duration(q.TimeoutMS)*time.Millisecond)
		defer cancel()
		ctx = limited
	}
	result, err := allocator.Allocate(ctx, node, asked)
	if err != nil {
		return nodeAnswer{
			Error:     err.Error(),
			NodeError: errors.Is(err, structured.ErrFailedAllocationOnNode),
			Timeout:   ctx.Err() != nil,
		}
	}
	return nodeAnswer{Allocations: result, Fits: result != nil || len(asked) == 0}
}

// timeAllocate times what a scheduling attempt costs: the allocator made anew (as for each pod),
// then every node asked once. The cache of compiled expressions is warm after the first round.
func timeAllocate(q allocateQuestion, classes classLister, cache *dracel.Cache, asked []*resourceapi.ResourceClaim) allocateAnswer {
	answer := allocateAnswer{}
	state := q.allocatedState()
	for range q.Repeat {
		answer.Fitting = 0
		start := cpuTime()
		allocator, err := structured.NewAllocator(context.Background(), q.features(), state, classes, q.Slices, cache)
		if err != nil {
			return allocateAnswer{Panic: err.Error()}
		}
		for _, node := range q.Nodes {
			if askNode(q, allocator, node, asked).Fits {
				answer.Fitting++
			}
		}
		answer.RoundNS = append(answer.RoundNS, (cpuTime() - start).Nanoseconds())
	}
	return answer
}

// cpuTime is what this process has used: on a busy machine the clock on the wall measures others.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
